"""How far a run is, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0


class TrainingProgress:
    """Shows step, loss, tokens per second and the time left."""

    def __init__(self, first_step: int, steps: int) -> None:
        """Begin after `first_step` of `steps` steps."""
        self._console = Console(stderr=True, highlight=False)
        self._steps = steps
        self._first_step = first_step
        self._start = time.monotonic()
        self._last_line = self._start - _SECONDS_BETWEEN_LINES
        columns = (
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:,.0f} tokens/s  left"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("", total=steps, completed=first_step, loss=float("nan"), speed=0.0)

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Show where the run is after `step` steps."""
        self._bar.update(self._task, completed=step, loss=loss, speed=tokens_per_second)
        now = time.monotonic()
        due = step == self._steps or now - self._last_line >= _SECONDS_BETWEEN_LINES
        if self._console.is_terminal or not due:
            return
        self._last_line = now
        left = (now - self._start) / (step - self._first_step) * (self._steps - step)
        speed = f"{tokens_per_second:,.0f} tokens/s"
        self._console.print(f"step {step}/{self._steps}  loss {loss:.4f}  {speed}  {left:.0f} s left", soft_wrap=True)

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
