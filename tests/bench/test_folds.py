"""Sweeps over what folding depends on."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import specdiff_jax as sd
from bench.draft_answers import Questions
from bench.environment import Environment
from bench.folds import Sweeps, measure, points
from bench.report import fill
from bench.results import add_rows
from specdiff_jax.cli.bench import bench

ENVIRONMENT = Environment("specdiff bench folds", "cpu", "none", "0.11.2", "2026-01-01", "aaa")
ASKED = Questions(problems=1, batch=5, threshold=0.9, max_new_tokens=9, dtype="float32")


def test_every_graph_is_measured_once_with_all_of_its_deltas() -> None:
    planned = points(Sweeps([-1.0, 0.1, 0.3], [1, 8], [1, 4]), lambda budget: sd.fixed_graph(budget, 1))
    assert [(nodes, graph.budget, graph.depth, deltas) for nodes, graph, deltas in planned] == [
        ("sets", 1, 1, [None, 0.1]),
        ("sets", 8, 1, [None, 0.1, -1.0, 0.3]),
        ("chains", 7, 1, [None, 0.1]),
        ("chains", 7, 4, [None, 0.1]),
    ]
    (only,) = points(Sweeps([0.2], [], []), lambda budget: sd.fixed_graph(budget, 1))
    assert (only[1].budget, only[2]) == (8, [0.2])


@pytest.mark.slow
def test_rows_tell_what_folding_costs_and_gives(tiny_diffusion_checkpoint: Path, tmp_path: Path) -> None:
    vanilla, spiffy, folded = measure(str(tiny_diffusion_checkpoint), ASKED, Sweeps([], [2], []))
    assert (vanilla["method"], vanilla["forwards_saved"], vanilla["fold_ratio"]) == ("vanilla", 0, None)
    assert (spiffy["method"], spiffy["fold_ratio"], spiffy["identical_to_baseline"]) == ("spiffy", None, 1)
    assert spiffy["settings"] == {key: folded["settings"][key] for key in spiffy["settings"]}
    assert (folded["method"], folded["settings"]["delta"], folded["settings"]["budget"]) == ("specfold", 0.1, 2)
    assert 0 < folded["fold_ratio"] < 1
    assert all(row["tokens_per_second"] > 0 and row["problems"] == 5 for row in (vanilla, spiffy, folded))
    add_rows(tmp_path, "folds", ENVIRONMENT, [vanilla, spiffy, folded])
    more = {**folded, "settings": {**folded["settings"], "budget": 1}, "tokens_per_second": 5.0}
    add_rows(tmp_path, "folds", ENVIRONMENT, [more])
    table = fill("<!-- results: fold-budgets -->\n<!-- end -->\n", tmp_path)
    depth = folded["settings"]["depth"]
    assert table.count(f"| {tiny_diffusion_checkpoint} | specfold | 2 | {depth} | 0.1 | 5 |") == 1
    assert table.count("| spiffy |") == table.count("| vanilla |") == 1
    assert "No results" in fill("<!-- results: fold-depths -->\n<!-- end -->\n", tmp_path)


def test_depths_beyond_the_drafts_are_refused(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(bench, ["folds", "--model", "tiny", "--depth", "8", "--out", str(tmp_path)])
    assert outcome.exit_code == 2
