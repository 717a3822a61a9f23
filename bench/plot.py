"""Curves of the result files, as pictures beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bench.fold_summary import sweep
from bench.results import Row, read_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_results(results: Path) -> list[Path]:
    """Draw what each GPU's folder below `results` holds: `verification.png` from `forward.json`, `drafts.png` from
    `drafts.json`, `delta.png`, `budget.png` and `depth.png` from `folds.json`.

    Returns:
        the files that were written.

    Raises:
        ImportError: matplotlib isn't installed (extra `plot`).
        InputError: a result file is damaged.
    """
    written = []
    for source, name, draw in PICTURES:
        for file in sorted(results.glob(f"*/{source}.json")):
            written += _picture(file, f"{name}.png", draw)
    return written


def draw_verification(axes: Axes, rows: Iterable[Row]) -> None:
    """Time of a forward that verifies drafts densely, over that of a vanilla one of the same implementation (the
    SpecFold paper's figure 3).
    """
    times: dict[str, dict[float, float]] = {}
    for row in rows:
        rows_of_a_branch = row["settings"]["rows"]
        if row["path"] in ("vanilla", "dense") and rows_of_a_branch > 1 and row["microseconds"]:
            name = f"{row['geometry']}, {row['implementation']}"
            times.setdefault(name, {})[row["branches"]] = row["microseconds"]
    for name, curve in sorted(times.items()):
        if len(curve) > 1 and 0 in curve:
            _line(axes, name, {drafts: time / curve[0] for drafts, time in curve.items()})
    axes.set(xlabel="drafts beside the main state", ylabel="time of a forward / of a vanilla one")


def draw_drafts(axes: Axes, rows: Iterable[Row]) -> None:
    """Share of vanilla decoding's forwards that drafts save, over their number."""
    curves: dict[str, dict[float, float]] = {}
    for row in rows:
        settings = row["settings"]
        if row["method"] == "spiffy":
            name = f"{row['model']}, {settings['nodes']}"
            curves.setdefault(name, {})[settings["budget"]] = 100 * row["forwards_saved"]
    for name, curve in sorted(curves.items()):
        _line(axes, name, curve)
    axes.set(xlabel="drafts", ylabel="forwards saved (%)", ylim=(0, None))


def draw_delta(axes: Axes, rows: Iterable[Row]) -> None:
    """Accuracy over delta, and the share of rows that are folded (the SpecFold paper's figure 4)."""
    for model, swept in _curves(rows, "specfold", "delta").items():
        points = {delta: row for delta, row in swept.items() if delta >= 0}  # below it nothing is folded
        _line(axes, f"{model}, right answers", {delta: 100 * row["accuracy"] for delta, row in points.items()})
        _line(axes, f"{model}, folded rows", {delta: 100 * row["fold_ratio"] for delta, row in points.items()}, "--")
    axes.set(xlabel="delta", ylabel="share (%)", ylim=(0, 100))


def draw_budget(axes: Axes, rows: Iterable[Row]) -> None:
    """Speed over the number of drafts, relative to vanilla decoding (the SpecFold paper's figure 5)."""
    _draw_speed(axes, rows, "budget")
    axes.set(xlabel="drafts")


def draw_depth(axes: Axes, rows: Iterable[Row]) -> None:
    """Speed over the depth of seven drafts, relative to vanilla decoding (the SpecFold paper's table 2)."""
    _draw_speed(axes, rows, "depth")
    axes.set(xlabel="depth of seven drafts")


def _draw_speed(axes: Axes, rows: Iterable[Row], over: str) -> None:
    rows = list(rows)
    for method, style in (("specfold", "-"), ("spiffy", "--")):
        for model, points in _curves(rows, method, over).items():
            _line(axes, f"{model}, {method}", {point: row["speedup"] for point, row in points.items()}, style)
    axes.set(ylabel="tokens/s, relative to vanilla", ylim=(0, None))


PICTURES: tuple[tuple[str, str, Callable[[Axes, Iterable[Row]], None]], ...] = (
    ("forward", "verification", draw_verification),
    ("drafts", "drafts", draw_drafts),
    ("folds", "delta", draw_delta),
    ("folds", "budget", draw_budget),
    ("folds", "depth", draw_depth),
)
"""Which result file each picture is of."""


def _curves(rows: Iterable[Row], method: str, over: str) -> dict[str, dict[float, Row]]:
    """By model, the rows of one method in a sweep, by what it is over."""
    curves: dict[str, dict[float, Row]] = {}
    for row in sweep(over)(rows):
        if row["method"] == method:
            curves.setdefault(row["model"], {})[row["settings"][over]] = row
    return dict(sorted(curves.items()))


def _line(axes: Axes, name: str, curve: Mapping[float, float], style: str = "-") -> None:
    axes.plot(*zip(*sorted(curve.items()), strict=True), style, marker="o", markersize=4, label=name)


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
