"""Forwards that drafts save, and their table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.draft_answers import Questions
from bench.drafts import KINDS, measure
from bench.environment import Environment
from bench.report import fill
from bench.results import add_rows
from specdiff_jax.cli.bench import bench
from specdiff_jax.errors import InputError

ENVIRONMENT = Environment("specdiff bench drafts", "cpu", "none", "0.11.2", "2026-01-01", "aaa")
TABLE = "<!-- results: drafts -->\n<!-- end -->\n"


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("sets",), KINDS])
def test_kinds_and_budgets_are_measured_against_vanilla(tiny_diffusion_checkpoint: Path, kinds: tuple[str, ...]):
    asked = Questions(problems=1, batch=5, threshold=0.9, max_new_tokens=9, dtype="float32")
    vanilla, *rows = measure(str(tiny_diffusion_checkpoint), asked, [2], kinds)
    assert (vanilla["method"], vanilla["forwards_saved"], vanilla["accepted_drafts"]) == ("vanilla", 0, 0)
    assert [(row["settings"]["nodes"], row["settings"]["budget"]) for row in rows] == [(kind, 2) for kind in kinds]
    for row in rows:
        assert row["problems"] == 5
        assert row["identical_to_baseline"] == 1
        assert row["forwards"] + row["accepted_drafts"] == vanilla["forwards"]
        assert row["forwards_saved"] == pytest.approx(row["accepted_drafts"] / vanilla["forwards"])
        assert sum(row["hits_by_level"]) == row["accepted_drafts"]
        assert sum(row["hits_by_level"][1:]) == row["hits_behind_drafts"] >= row["hits_after_fold_parent"]


def test_an_unknown_kind_is_refused(tmp_path: Path):
    run = CliRunner().invoke(bench, ["drafts", "--model", "tiny", "--kind", "trees", "--out", str(tmp_path)])
    assert isinstance(run.exception, InputError)
    assert "trees" in str(run.exception)


def test_budgets_stand_side_by_side(tmp_path: Path):
    def row(budget: int, nodes: str, saved: float, same: float) -> dict[str, object]:
        settings = {"implementation": "xla", "nodes": nodes, "budget": budget}
        counters = {"problems": 10, "forwards_saved": saved, "identical_to_baseline": same}
        return {"model": "tiny", "task": "all", "method": "spiffy", "settings": settings, **counters}

    rows = [row(8, "sets", 0.3, 1.0), row(1, "sets", 0.125, 0.5), row(2, "one token", 0.2, 1.0)]
    vanilla = {**rows[0], "method": "vanilla"}
    add_rows(tmp_path, "drafts", ENVIRONMENT, [*rows, vanilla])
    assert len(json.loads((tmp_path / "cpu" / "drafts.json").read_text())["rows"]) == 4
    table = fill(TABLE, tmp_path)
    assert "| tiny | one token | 10 | 100.0% | - | 20.0% | - | - | - | - | - | - |" in table
    assert "| tiny | sets | 10 | 75.0% | 12.5% | - | - | - | - | - | - | 30.0% |" in table
    assert table.count("| tiny |") == 2
