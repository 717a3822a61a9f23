"""Tokens that rounding turns, and their table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import specdiff_jax as sd
from bench.environment import Environment
from bench.flips import DTYPES, FlipBench, flips, measure
from bench.report import fill
from bench.results import add_rows

ENVIRONMENT = Environment("specdiff bench flips", "cpu", "none", "0.11.2", "2026-01-01", "aaa")
TABLE = "<!-- results: flips -->\n<!-- end -->\n"


@pytest.mark.parametrize(
    ("answers", "compared", "flipped"),
    [
        ([[1, 2, 3], [4]], 4, 0),
        ([[1, 9, 9, 9], [4]], 3, 1),  # what follows the 9 answers another text
        ([[1, 2], [4]], 4, 1),  # ended where the truth goes on: that is the third token
        ([[1, 2, 3, 3], [5]], 5, 2),
    ],
)
def test_first_differences_count(answers: list[list[int]], compared: int, flipped: int) -> None:
    row = flips(answers, [[1, 2, 3], [4]])
    assert row["tokens_compared"] == compared
    assert row["same_answers"] == 1 - flipped / 2
    assert row["flips_per_thousand_tokens"] == pytest.approx(1000 * flipped / compared, abs=1e-4)


@pytest.mark.slow
def test_every_method_and_dtype_is_compared_with_the_exact_mode(
    tiny_diffusion_checkpoint: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_diffusion_checkpoint, tmp_path / "drafting")
    sd.write_graph(sd.fixed_graph(2, 1), folder / "draft_graph.json")
    rows = list(measure(str(folder), FlipBench([5], problems=1, threshold=0.9, max_new_tokens=8)))
    asked = [(row["settings"]["dtype"], row["method"]) for row in rows]
    assert asked == [(dtype, method) for dtype in DTYPES for method in ("vanilla", "spiffy")]
    assert [row["flips_per_thousand_tokens"] for row in rows[:2]] == [0, 0]
    assert all(row["problems"] == 5 and row["tokens_compared"] > 0 for row in rows)
    add_rows(tmp_path, "flips", ENVIRONMENT, rows)
    table = fill(TABLE, tmp_path)
    assert f"| {folder} | float32 | spiffy | 5 | 5 | 100.0% | 0.00 |" in table
    assert table.count("| bfloat16 |") == 2
