"""The curves of a run as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, float | None]]

_LOSSES = {"loss": "training", "validation_loss": "validation"}
_ACCEPTANCE = {"acceptance": "simulated, training", "tau": "decoded, held-out prompts"}


def plot_loss(rows: Rows, destination: Path) -> None:
    """Draw the loss over the steps, and where they were logged validation loss and acceptance length, as PNG.

    Args:
        rows: lines of `read_log`.
        destination: the file.

    Raises:
        ImportError: matplotlib isn't installed (extra `plot`).
    """
    from matplotlib.figure import Figure

    drafts = any(row.get(column) is not None for row in rows for column in _ACCEPTANCE)
    figure = Figure(figsize=(12 if drafts else 7, 4), layout="constrained")
    losses, *others = figure.subplots(1, 1 + drafts, squeeze=False)[0]
    losses.set(ylabel="loss", yscale="log")
    _draw(losses, rows, _LOSSES)
    for lengths in others:
        lengths.set(ylabel="acceptance length (tokens a verification)")
        _draw(lengths, rows, _ACCEPTANCE)
    figure.savefig(destination, dpi=150)


def _draw(axes: Axes, rows: Rows, columns: Mapping[str, str]) -> None:
    """A line for each column that has values."""
    for column, name in columns.items():
        points = [(row["step"], row[column]) for row in rows if row.get(column) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=name, marker="o" if len(points) == 1 else None)
    axes.set(xlabel="step")
    axes.grid(alpha=0.3)
    axes.legend()
