"""README tables from result files."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.environment import Environment
from bench.report import fill
from bench.results import add_rows
from bench.tasks import TASK_NAMES
from specdiff_jax.cli.bench import bench
from specdiff_jax.errors import InputError

ROOT = Path(__file__).parents[2]
ENVIRONMENT = Environment("specdiff bench decode", "h200", "580.1", "0.11.2", "2026-01-01", "aaa")
README = (
    "before\n<!-- results: decode -->\nstale\n<!-- end -->\nbetween\n<!-- results: forward -->\n<!-- end -->\nafter\n"
)


def step(batch: int, method: str = "autoregressive", **rest: object) -> dict[str, object]:
    settings = {
        "batch": batch,
        "devices": 1,
        "weights": "random",
        "cache_tokens": 512,
        "xla_flags": "--x" * (batch > 1),
    }
    return {
        "model": "qwen3-8b",
        "task": "step",
        "method": method,
        "settings": settings,
        "tokens_per_second": 12345.67,
        "step_microseconds": 4321.5,
        "weight_floor_microseconds": None,
        "ratio_to_floor": 1.234,
        **rest,
    }


@pytest.fixture
def results(tmp_path) -> Path:
    failed = {"tokens_per_second": None, "step_microseconds": None, "ratio_to_floor": None, "error": "no memory"}
    rows = [step(32), step(1), step(1, "transformers-eager", **failed)]
    add_rows(tmp_path / "results", "decode", ENVIRONMENT, rows)
    return tmp_path / "results"


def test_tables_hold_the_rows_in_order_and_text_around_them_stays(results):
    assert fill(README, results) == (
        "before\n<!-- results: decode -->\n"
        "`h200`, driver 580.1, jax 0.11.2, 2026-01-01, commit aaa:\n\n"
        "| model | weights | batch | cache (tokens) | GPUs | method | step (µs) | tokens/s "
        "| reading the weights (µs) | step / reading |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| qwen3-8b | random | 1 | 512 | 1 | transformers-eager | failed | failed | - | - |\n"
        "| qwen3-8b | random | 1 | 512 | 1 | autoregressive | 4,322 | 12,346 | - | 1.23 |\n"
        "| qwen3-8b | random | 32 | 512 | 1 | autoregressive (`--x`) | 4,322 | 12,346 | - | 1.23 |\n"
        "<!-- end -->\nbetween\n<!-- results: forward -->\nNo results yet.\n<!-- end -->\nafter\n"
    )


def answered(task: str, accuracy: float, problems: int = 10, **rest: object) -> dict[str, object]:
    settings = {"batch": 8, "threshold": 0.9, "devices": 1}
    counters = {"forwards": 100, "tokens_per_forward": 2.0, "tokens_per_second": 50.0, "identical_to_baseline": None}
    row = {"model": "tiny", "task": task, "method": "vanilla", "settings": settings, "problems": problems}
    return {**row, "accuracy": accuracy, **counters, **rest}


def test_the_tasks_of_a_measurement_are_one_row(tmp_path):
    accuracies = dict(zip(TASK_NAMES, (0.5, 0.6, 0.7, 0.8, 0.9), strict=True))
    faster = {TASK_NAMES[0]: {"forwards": 300, "tokens_per_second": 600.0}}  # 600 tokens in 1 s beside 800 in 16 s
    same = {"identical_to_baseline": 0.5}
    rows = [answered(task, accuracy, **same, **faster.get(task, {})) for task, accuracy in accuracies.items()]
    rows += [answered(TASK_NAMES[1], 1.0, problems=4), answered(TASK_NAMES[2], 0.0, problems=4, error="no memory")]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    add_rows(tmp_path / "a", "decode", ENVIRONMENT, rows[:5])
    add_rows(tmp_path / "b", "decode", ENVIRONMENT, rows[5:])

    table = "<!-- results: tasks -->\n<!-- end -->\n"
    whole, some = fill(table, tmp_path / "a"), fill(table, tmp_path / "b")
    assert (
        "| tiny | vanilla | 0.9 | 8 | 10 | 50.0% | 60.0% | 70.0% | 80.0% | 90.0% | 70.0% | 50.0% | 2.00 | 82 |" in whole
    )
    assert "| tiny | vanilla | 0.9 | 8 | 4 | - | 100.0% | - | - | - | - | - | 2.00 | 50 |" in some


def prompted(method: str, file: str, tokens_per_second: float, temperature: float = 0.0) -> dict[str, object]:
    own = {"drafter": "small-dflash", "block_size": None} if method == "dflash" else {}
    settings = {"batch": 1, "devices": 1, "weights": "the model's own", "prompts": file, **own}
    if temperature:
        settings["temperature"] = temperature
    drafted = method == "dflash"
    return {
        "model": "tiny",
        "task": "prompts",
        "method": method,
        "settings": settings,
        "problems": 64,
        "forwards": 100,
        "tokens_per_forward": 3.5 if drafted else 1.0,
        "tokens_per_second": tokens_per_second,
        "acceptance_length": 3.456 if drafted else None,
        "pooled_acceptance_length": 3.4 if drafted else None,
        "repetitive_share": 0.25,
        "identical_to_baseline": 0.98 if drafted else None,
    }


def test_answers_with_a_drafter_stand_beside_autoregressive_ones(tmp_path):
    rows = [prompted("autoregressive", "gsm8k.jsonl", 200.0), prompted("dflash", "gsm8k.jsonl", 500.0)]
    rows += [prompted("autoregressive", "gsm8k.jsonl", 100.0, 1.0), prompted("dflash", "gsm8k.jsonl", 300.0, 1.0)]
    rows += [prompted("dflash", "mbpp.jsonl", 400.0), prompted("autoregressive", "other.jsonl", 150.0)]
    add_rows(tmp_path, "decode", ENVIRONMENT, rows)
    tables = fill("<!-- results: dflash -->\n<!-- end -->\n<!-- results: prompts -->\n<!-- end -->\n", tmp_path)
    drafted, plain = tables.split("<!-- end -->", 1)
    assert [line for line in drafted.splitlines() if "| tiny" in line] == [
        "| tiny | small-dflash | gsm8k.jsonl | 64 | 0 | 1 | as trained | 3.46 | 3.40 | 500 | 2.50 | 98.0% | 25.0% |",
        "| tiny | small-dflash | gsm8k.jsonl | 64 | 1 | 1 | as trained | 3.46 | 3.40 | 300 | 3.00 | 98.0% | 25.0% |",
        "| tiny | small-dflash | mbpp.jsonl | 64 | 0 | 1 | as trained | 3.46 | 3.40 | 400 | - | 98.0% | 25.0% |",
    ]
    assert [line for line in plain.splitlines() if "| tiny" in line] == [
        "| tiny | the model's own | 1 | 1 | autoregressive | 64 | 100 | 1.00 | 150 |"
    ]


def forward(path: str, implementation: str, microseconds: float | None) -> dict[str, object]:
    settings = {"rows": 32, "cache_tokens": 512, "dtype": "bfloat16", "xla_flags": ""}
    folded = {"fold_ratio": 0.6, "buckets": 4} if path == "folded" else {}
    return {
        "geometry": "nld-3b",
        "path": path,
        "implementation": implementation,
        "branches": 0 if path == "vanilla" else 8,
        "fold_ratio": folded.get("fold_ratio"),
        "rows": 32 if path == "vanilla" else 134 if folded else 288,
        "microseconds": microseconds,
        "weight_floor_microseconds": 1500.0,
        "settings": {**settings, **folded},
    }


def test_a_forward_stands_beside_the_vanilla_one_of_its_implementation(tmp_path):
    rows = [forward("vanilla", "xla", 2000.0), forward("folded", "xla", 5000.0), forward("folded", "pallas", 3000.0)]
    rows += [forward("vanilla", "pallas", 2500.0), forward("dense", "pallas", None)]
    add_rows(tmp_path, "forward", ENVIRONMENT, rows)
    table = fill("<!-- results: forward -->\n<!-- end -->\n", tmp_path)
    assert [line for line in table.splitlines() if "nld-3b" in line] == [
        "| nld-3b | vanilla | pallas | 0 | 32 | - | - | 2,500 | 1.00 | 1,500 |",
        "| nld-3b | vanilla | xla | 0 | 32 | - | - | 2,000 | 1.00 | 1,500 |",
        "| nld-3b | dense | pallas | 8 | 288 | - | - | - | - | 1,500 |",
        "| nld-3b | folded | pallas | 8 | 134 | 0.60 | 4 | 3,000 | 1.20 | 1,500 |",
        "| nld-3b | folded | xla | 8 | 134 | 0.60 | 4 | 5,000 | 2.50 | 1,500 |",
    ]


def kernel(name: str, implementation: str, microseconds: float | None, **rest: object) -> dict[str, object]:
    flags = {} if implementation == "cublas" else {"xla_flags": ""}
    return {
        "geometry": "nld-3b",
        "kernel": name,
        "implementation": implementation,
        "rows": 134,
        "microseconds": microseconds,
        "weight_floor_microseconds": 6.0 if name == "output" else None,
        "settings": {"implementation": implementation, "dtype": "bfloat16", **flags},
        **rest,
    }


def test_implementations_of_a_kernel_are_one_row(tmp_path):
    rows = [kernel("output", "xla", 12.0), kernel("output", "cublas", 9.0), kernel("plan_rows", "triton", 4.0)]
    rows += [kernel("plan_rows", "xla", 40.0), kernel("normed_rows", "xla", 7.5)]
    rows += [kernel("normed_rows", "triton", None, error="no memory"), kernel("down", "xla", 20.0)]
    rows += [kernel("output", "xla", 3.0, settings={"dtype": "bfloat16", "xla_flags": "--x"})]
    add_rows(tmp_path, "kernels", ENVIRONMENT, rows)
    table = fill("<!-- results: kernels -->\n<!-- end -->\n<!-- results: products -->\n<!-- end -->\n", tmp_path)
    assert [line for line in table.splitlines() if "nld-3b" in line] == [
        "| nld-3b | plan_rows | 134 | 40.0 | 4.0 | 0.10 |",
        "| nld-3b | normed_rows | 134 | 7.5 | failed | - |",
        "| nld-3b | output | 134 | 12.0 | 9.0 | 0.75 | 6.0 |",
        "| nld-3b | down | 134 | 20.0 | - | - | - |",
    ]


def test_an_unknown_table_is_refused(results):
    with pytest.raises(InputError, match="'speed'"):
        fill("<!-- results: speed -->\n<!-- end -->\n", results)


def test_a_marker_without_an_end_is_refused(results):
    with pytest.raises(InputError, match="end"):
        fill("<!-- results: decode -->\n", results)


def test_check_tells_a_stale_readme_and_report_mends_it(results, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(README)
    arguments = ["report", "--readme", str(readme), "--results", str(results)]
    run = CliRunner().invoke
    assert run(bench, [*arguments, "--check"]).exit_code == 1
    assert readme.read_text() == README
    assert run(bench, arguments).exit_code == 0
    assert run(bench, [*arguments, "--check"]).exit_code == 0


@pytest.mark.parametrize("page", ["README.md", "bench/results/FOLDING.md"])
def test_pages_say_what_the_results_say(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert fill(text, ROOT / "bench" / "results") == text, f"run: specdiff bench report --readme {page}"
