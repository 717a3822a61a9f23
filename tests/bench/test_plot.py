"""Curves of result files."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.environment import Environment
from bench.plot import draw_budget, draw_delta, draw_depth, draw_drafts, draw_verification
from bench.results import Row, add_rows
from specdiff_jax.cli.bench import bench

figure = pytest.importorskip("matplotlib.figure")
ENVIRONMENT = Environment("specdiff bench", "h200", "580.1", "0.11.2", "2026-01-01", "aaa")


def forward(
    geometry: str, branches: int, microseconds: float | None, rows: int = 32, implementation: str = "xla"
) -> Row:
    path = "dense" if branches else "vanilla"
    settings = {"rows": rows}
    known = {"geometry": geometry, "path": path, "branches": branches, "settings": settings}
    return {**known, "implementation": implementation, "microseconds": microseconds}


FORWARDS = [
    forward("nld-3b", 4, 300.0),
    forward("nld-3b", 0, 200.0),
    forward("nld-3b", 0, 100.0, rows=1),  # a single row is no block
    forward("nld-3b", 8, None),  # failed
    forward("qwen3-8b", 0, 500.0),  # no curve
    forward("nld-3b", 0, 100.0, implementation="pallas"),
    forward("nld-3b", 4, 120.0, implementation="pallas"),
]


def drafted(nodes: str, budget: int, saved: float, method: str = "spiffy") -> Row:
    settings = {"nodes": nodes, "budget": budget} if method == "spiffy" else {}
    return {"model": "tiny", "task": "all", "method": method, "settings": settings, "forwards_saved": saved}


DRAFTS = [
    drafted("", 0, 0.0, "vanilla"),
    drafted("sets", 2, 0.5),
    drafted("sets", 1, 0.25),
    drafted("one token", 1, 0.2),
]


def lines(draw, rows: list[Row]) -> dict[str, list[tuple[float, float]]]:
    axes = figure.Figure().add_subplot()
    draw(axes, rows)
    return {line.get_label(): [tuple(point) for point in line.get_xydata()] for line in axes.lines}


def test_the_cost_of_verification_is_relative_to_a_vanilla_forward() -> None:
    assert lines(draw_verification, FORWARDS) == {
        "nld-3b, xla": [(0, 1), (4, 1.5)],
        "nld-3b, pallas": [(0, 1), (4, 1.2)],
    }


def test_saved_forwards_are_over_the_number_of_drafts() -> None:
    expected = {"tiny, sets": [(1, 25), (2, 50)], "tiny, one token": [(1, 20)]}
    assert lines(draw_drafts, DRAFTS) == expected


def folded(method: str, saved_speed: float, **settings: object) -> Row:
    known = {"model": "tiny", "task": "all", "method": method, "settings": {"nodes": "sets", "budget": 8, **settings}}
    return {**known, "problems": 5, "accuracy": 0.5, "fold_ratio": 0.75, "tokens_per_second": saved_speed}


FOLDS = [
    {**folded("vanilla", 100.0), "settings": {}},
    folded("specfold", 150.0, delta=0.1),
    folded("specfold", 160.0, delta=0.3),
    folded("specfold", 120.0, delta=0.1, budget=2),
    folded("spiffy", 80.0),
    folded("spiffy", 90.0, budget=1),
    folded("specfold", 170.0, delta=0.1, nodes="chains", budget=7, depth=1),
    folded("specfold", 180.0, delta=0.1, nodes="chains", budget=7, depth=2),
    folded("specfold", 190.0, delta=0.1, buckets=1),  # of other row counts
    folded("specfold", 195.0, delta=0.1, attention="correct"),
    {**folded("vanilla", 1000.0), "settings": {}, "problems": 50},  # of other questions
    {**folded("specfold", 1500.0, delta=0.1), "problems": 50},
    {**folded("vanilla", 10.0), "settings": {"sub_block_cache": True}},
    folded("specfold", 15.0, delta=0.2, sub_block_cache=True),
]


def test_accuracy_and_folded_rows_are_over_delta() -> None:
    expected = {"tiny, right answers": [(0.1, 50), (0.3, 50)], "tiny, folded rows": [(0.1, 75), (0.3, 75)]}
    assert lines(draw_delta, FOLDS) == expected


def test_speed_over_drafts_is_at_the_usual_delta() -> None:
    expected = {"tiny, specfold": [(2, 1.2), (8, 1.5)], "tiny, spiffy": [(1, 0.9), (8, 0.8)]}
    assert lines(draw_budget, FOLDS) == expected


def test_speed_over_depth() -> None:
    assert lines(draw_depth, FOLDS) == {"tiny, specfold": [(1, 1.7), (2, 1.8)]}


def test_pictures_lie_beside_the_results(tmp_path: Path) -> None:
    add_rows(tmp_path, "forward", ENVIRONMENT, FORWARDS)
    add_rows(tmp_path, "drafts", ENVIRONMENT, DRAFTS[:1])
    run = CliRunner().invoke(bench, ["plot", "--results", str(tmp_path)])
    assert run.exit_code == 0, run.output
    assert (tmp_path / "h200" / "verification.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "h200" / "drafts.png").exists()  # nothing to draw
