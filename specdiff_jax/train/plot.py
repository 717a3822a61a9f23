"""The loss of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def plot_loss(rows: Sequence[dict[str, float | None]], destination: Path) -> None:
    """Draw the loss over the steps, and the validation loss where there is one, as PNG.

    Args:
        rows: lines of `read_log`.
        destination: the file.

    Raises:
        ImportError: matplotlib isn't installed (extra `plot`).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss", yscale="log")
    for column, name in (("loss", "training"), ("validation_loss", "validation")):
        points = [(row["step"], row[column]) for row in rows if row.get(column) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=name, marker="o" if len(points) == 1 else None)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(destination, dpi=150)
