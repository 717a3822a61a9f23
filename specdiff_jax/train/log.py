"""The log of a run: a CSV file with a line every few steps."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path


class TrainingLog:
    """Lines of numbers that are appended as the run goes, each handed to the system before the next checkpoint."""

    def __init__(self, path: Path, lines: int) -> None:
        """Open or create a log.

        Args:
            path: the file.
            lines: how many lines stay, from the first: those of the steps before the checkpoint that the run goes on
                from. The others will be written again.
        """
        self._path = path
        self._seconds = 0.0
        if path.exists():
            _cut(path, lines)
        if path.exists():
            self._seconds = read_log(path)[-1]["seconds"] or 0.0

    def append(self, row: Mapping[str, int | float | None], tokens: int, seconds: float) -> None:
        """Write a line; the first one also writes the head.

        Args:
            row: names and numbers; None is an empty field.
            tokens: tokens since the line before.
            seconds: time since the line before; the log counts it from the start of the run.
        """
        self._seconds += seconds
        speed = {"tokens_per_second": round(tokens / seconds, 1), "seconds": round(self._seconds, 3)}
        is_new = not self._path.exists()
        with self._path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [*row, *speed], lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow({**row, **speed})


def read_log(path: Path) -> list[dict[str, float | None]]:
    """The lines, by the names in the head."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: float(text) if text else None for name, text in line.items()} for line in csv.DictReader(file)]


def _cut(path: Path, lines: int) -> None:
    """Keep the head and the first lines; none at all leaves no file."""
    if lines == 0:
        path.unlink()
        return
    kept = path.read_text(encoding="utf-8").splitlines(keepends=True)[: 1 + lines]
    shorter = path.with_suffix(".partial")
    shorter.write_text("".join(kept), encoding="utf-8")
    os.replace(shorter, path)
