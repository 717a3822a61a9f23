"""Curves of the result files, as pictures beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.results import Row, read_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_results(results: Path) -> list[Path]:
    """Draw what each GPU's folder below `results` holds: `verification.png` from `forward.json`, `drafts.png` from
    `drafts.json`.

    Returns:
        the files that were written.

    Raises:
        ImportError: matplotlib isn't installed (extra `plot`).
        InputError: a result file is damaged.
    """
    written = []
    for source, name, draw in (("forward", "verification", draw_verification), ("drafts", "drafts", draw_drafts)):
        for file in sorted(results.glob(f"*/{source}.json")):
            written += _picture(file, f"{name}.png", draw)
    return written


def draw_verification(axes: Axes, rows: Iterable[Row]) -> None:
    """Time of a forward that verifies drafts densely, over that of a vanilla one (the SpecFold paper's figure 3)."""
    times: dict[str, dict[int, float]] = {}
    for row in rows:
        rows_of_a_branch = row["settings"]["rows"]
        if row["path"] in ("vanilla", "dense") and rows_of_a_branch > 1 and row["microseconds"]:
            times.setdefault(row["geometry"], {})[row["branches"]] = row["microseconds"]
    for geometry, curve in sorted(times.items()):
        if len(curve) > 1 and 0 in curve:
            _line(axes, geometry, {drafts: time / curve[0] for drafts, time in curve.items()})
    axes.set(xlabel="drafts beside the main state", ylabel="time of a forward / of a vanilla one")


def draw_drafts(axes: Axes, rows: Iterable[Row]) -> None:
    """Share of vanilla decoding's forwards that drafts save, over their number."""
    curves: dict[str, dict[int, float]] = {}
    for row in rows:
        settings = row["settings"]
        if row["method"] == "spiffy":
            name = f"{row['model']}, {settings['nodes']}"
            curves.setdefault(name, {})[settings["budget"]] = 100 * row["forwards_saved"]
    for name, curve in sorted(curves.items()):
        _line(axes, name, curve)
    axes.set(xlabel="drafts", ylabel="forwards saved (%)", ylim=(0, None))


def _line(axes: Axes, name: str, curve: dict[int, float]) -> None:
    axes.plot(*zip(*sorted(curve.items()), strict=True), marker="o", markersize=4, label=name)


def _picture(file: Path, name: str, draw: Callable[[Axes, Iterable[Row]], None]) -> list[Path]:
    """Draw the rows of a result file beside it, unless they hold no curve."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    draw(axes, read_results(file)["rows"])
    if not axes.lines:
        return []
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    destination = file.with_name(name)
    figure.savefig(destination, dpi=150, metadata={"Software": None})
    return [destination]
