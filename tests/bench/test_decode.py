"""What `specdiff bench decode` measures and writes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import specdiff_jax as sd
from bench.decode import BASELINES, DecodeBench, sections
from bench.run import Settings
from bench.section import measure_apart
from specdiff_jax.cli.bench import bench
from specdiff_jax.errors import InputError

ROW_KEYS = [
    "model",
    "task",
    "method",
    "settings",
    "problems",
    "accuracy",
    "forwards",
    "tokens_per_forward",
    "tokens_per_second",
    "acceptance_length",
    "fold_ratio",
    "repetitive_share",
    "identical_to_baseline",
]
# The small checkpoint: embedding (no head), two layers, final norm.
EMBEDDING, PER_LAYER = 290 * 32, (4 + 2 * 2) * 8 * 32 + 4 * 8 * 32 + 3 * 64 * 32 + 2 * 32
FAST = ("--steps", 60, "--repeats", 2, "--cache-tokens", 16, "--commit", "abc")


@pytest.fixture
def run(monkeypatch):
    """`specdiff bench`, its processes on the CPU and able to import the checkout."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setattr(sys, "argv", ["specdiff", "bench", "decode"])
    return lambda *arguments: CliRunner().invoke(bench, [str(argument) for argument in arguments])


def test_a_model_is_measured_by_step_and_by_prompts(run, tiny_checkpoint, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "two two"}\n{"prompt": "three"}\n')
    asked = (
        "--model",
        tiny_checkpoint,
        "--batch",
        2,
        "--prompts",
        prompts,
        "--max-new-tokens",
        8,
        "--dtype",
        "float32",
    )
    outcome = run("decode", *asked, *FAST, "--out", tmp_path, "--json")
    assert outcome.exit_code == 0, outcome.output
    file = json.loads((tmp_path / "cpu" / "decode.json").read_text())
    assert (file["gpu"], file["driver"], file["commit"]) == ("cpu", None, "abc")
    step, answers = file["rows"]
    assert [json.loads(line)["task"] for line in outcome.stdout.splitlines()] == ["step", "prompts"]

    assert list(step)[: len(ROW_KEYS)] == ROW_KEYS
    assert (step["task"], step["method"]) == ("step", "autoregressive")
    assert step["settings"] == {
        "implementation": "xla",
        "weights": "the model's own",
        "xla_flags": "",
        "dtype": "float32",
        "devices": 1,
        "batch": 2,
        "cache_tokens": 16,
    }
    assert step["tokens_per_second"] == pytest.approx(2e6 / step["step_microseconds"], rel=1e-2)
    assert step["weight_bytes"] == 4 * (EMBEDDING + 2 * PER_LAYER + 32)
    assert step["cache_bytes"] == 4 * 2 * 2 * 2 * 16 * 2 * 8
    floor = step["weight_bytes"] / step["read_gigabytes_per_second"] / 1e3
    assert step["weight_floor_microseconds"] == pytest.approx(floor, rel=2e-2)

    assert list(answers)[: len(ROW_KEYS)] == ROW_KEYS
    assert (answers["task"], answers["problems"]) == ("prompts", 3)
    assert answers["settings"]["prompts"] == "prompts.jsonl"
    assert 0 < answers["forwards"] <= 3 * 7
    assert answers["tokens_per_second"] > 0


@pytest.mark.slow
def test_a_diffusion_model_solves_tasks(run, tiny_diffusion_checkpoint, tmp_path):
    asked = ("--model", tiny_diffusion_checkpoint, "--method", "vanilla", "--threshold", 0.5, "--task", "formatting")
    short = ("--batch", 2, "--problems", 3, "--max-new-tokens", 8, "--repeats", 1, "--dtype", "float32")
    outcome = run("decode", *asked, *short, "--commit", "abc", "--out", tmp_path)
    assert outcome.exit_code == 0, outcome.output
    (row,) = json.loads((tmp_path / "cpu" / "decode.json").read_text())["rows"]
    assert list(row)[: len(ROW_KEYS)] == ROW_KEYS
    assert (row["task"], row["method"], row["problems"]) == ("formatting", "vanilla", 3)
    assert (row["settings"]["threshold"], row["settings"]["seed"]) == (0.5, 0)
    assert 0 <= row["accuracy"] <= 1
    assert row["repetitive_share"] == 0  # too short to be


@pytest.mark.slow
def test_spiffy_is_measured_against_its_baseline(run, tiny_diffusion_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_diffusion_checkpoint, tmp_path / "drafting")
    sd.write_graph(sd.fixed_graph(2, 1), folder / "draft_graph.json")
    asked = ("--model", folder, "--method", "spiffy", "--task", "formatting")
    short = ("--batch", 2, "--problems", 3, "--max-new-tokens", 8, "--repeats", 1, "--dtype", "float32")
    outcome = run("decode", *asked, *short, "--commit", "abc", "--out", tmp_path)
    assert outcome.exit_code == 0, outcome.output
    (row,) = json.loads((tmp_path / "cpu" / "decode.json").read_text())["rows"]
    assert (row["method"], row["problems"], row["settings"]["threshold"]) == ("spiffy", 3, 0.9)
    assert row["identical_to_baseline"] == 1


@pytest.mark.parametrize(
    ("command", "asked", "shapes"),
    [("decode", ("--batch", 1, "--batch", 2), "batch"), ("forward", ("--rows", 1, "--rows", 2), "rows")],
)
def test_what_is_not_measured_is_a_row_and_the_rest_goes_on(run, tmp_path, command, asked, shapes):
    outcome = run(command, "--geometry", "nld-3b", *asked, *FAST, "--out", tmp_path, "--time-limit", 0)
    assert outcome.exit_code == 1
    assert "failed: not begun" in outcome.stdout
    rows = json.loads((tmp_path / "cpu" / f"{command}.json").read_text())["rows"]
    assert {row["settings"][shapes] for row in rows} == {1, 2}
    assert all("time limit" in row["error"] for row in rows)
    if command == "decode":
        assert all(list(row)[: len(ROW_KEYS)] == ROW_KEYS for row in rows)


def test_the_command_is_kept_without_what_changes_no_number(run, tmp_path, monkeypatch):
    typed = [
        "bench",
        "decode",
        "--out",
        "/here",
        "--geometry",
        "nld-3b",
        "--commit=abc",
        "--time-limit",
        "0",
        "--steps",
        "9",
    ]
    monkeypatch.setattr(sys, "argv", ["specdiff", *typed])
    run("decode", "--geometry", "nld-3b", "--method", "autoregressive", "--out", tmp_path, "--time-limit", 0)
    content = json.loads((tmp_path / "cpu" / "decode.json").read_text())
    assert content["command"] == "specdiff bench decode --geometry nld-3b --steps 9"


def test_several_devices_share_the_weights(run, tiny_checkpoint):
    arguments = {"name": str(tiny_checkpoint), "random": False, "dtype": "float32", "batch": 2, "cache_tokens": 16}
    result = measure_apart(
        "bench.decode_step",
        {**arguments, "devices": 2, "steps": 40, "repeats": 2},
        seconds=300,
        flags="--xla_force_host_platform_device_count=2",
    )
    assert result["seconds"] > 0, result
    norms = 5 * 32  # which every device holds whole
    assert result["weight_bytes"] == 4 * ((EMBEDDING + 2 * PER_LAYER + 32 - norms) // 2 + norms)
    assert result["cache_bytes"] == 4 * 2 * 2 * 2 * 16 * 2 * 8 // 2


def test_baselines_run_on_geometries_alone():
    methods = ["autoregressive", "vanilla", *BASELINES]
    asked = DecodeBench(["qwen3-8b"], ["smollm2"], [1, 32], methods, devices=2, prompts=Path("p.jsonl"))
    planned = [
        (section.known["model"], section.known["task"], section.known["method"], section.known["settings"]["batch"])
        for section in sections(asked, Settings())
    ]
    assert planned == [
        *(("qwen3-8b", "step", "autoregressive", batch) for batch in (1, 32)),
        *(("qwen3-8b", "random ids", "vanilla", batch) for batch in (1, 32)),
        *(("qwen3-8b", "step", method, batch) for method in BASELINES for batch in (1, 32)),
        *(("smollm2", "step", "autoregressive", batch) for batch in (1, 32)),
        *(("smollm2", "prompts", method, batch) for method in methods[:2] for batch in (1, 32)),
    ]


@pytest.mark.slow
def test_a_drafter_is_measured_beside_autoregressive_answers(run, tiny_checkpoint, drafter_folder, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "two two"}\n')
    methods = ("--method", "autoregressive", "--method", "dflash", "--drafter", drafter_folder)
    asked = ("--model", tiny_checkpoint, *methods, "--batch", 1, "--prompts", prompts, "--max-new-tokens", 12)
    short = ("--repeats", 1, "--steps", 60, "--dtype", "float32")
    outcome = run("decode", *asked, *short, "--commit", "abc", "--out", tmp_path)
    assert outcome.exit_code == 0, outcome.output
    rows = json.loads((tmp_path / "cpu" / "decode.json").read_text())["rows"]
    assert [(row["method"], row["task"]) for row in rows] == [
        ("autoregressive", "step"),
        ("autoregressive", "prompts"),
        ("dflash", "prompts"),
    ]
    assert all(list(row)[: len(ROW_KEYS)] == ROW_KEYS for row in rows)
    assert rows[1]["acceptance_length"] is None
    assert rows[2]["acceptance_length"] >= 1
    assert (rows[2]["identical_to_baseline"], rows[2]["repetitive_share"]) == (1, 0)
    assert f"tokens/s, acceptance length {rows[2]['acceptance_length']:.2f}, spread" in outcome.stdout


def test_a_drafter_s_rows_say_what_drafted():
    asked = DecodeBench(
        [],
        ["smollm2"],
        [1],
        ["autoregressive", "dflash"],
        prompts=Path("p.jsonl"),
        drafter="/here/drafter",
        block_size=8,
        temperature=1.0,
    )
    step, plain, drafted = sections(asked, Settings())
    assert "temperature" not in step.known["settings"]
    assert plain.known["settings"]["temperature"] == drafted.arguments["temperature"] == 1.0
    about = drafted.known["settings"]
    assert (about["drafter"], about["block_size"], about["prompts"]) == ("drafter", 8, "p.jsonl")
    assert drafted.arguments["flags"] == {"drafter": "/here/drafter", "block_size": 8}


def test_geometries_have_no_draft_graphs():
    with pytest.raises(InputError, match="method spiffy needs models with a draft graph"):
        DecodeBench(["nld-3b"], ["pico-nld"], [1], ["spiffy"]).check()


def test_flags_are_added_to_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--a")
    settings = Settings(flags="--b")
    (section,) = sections(DecodeBench(["nld-3b"], [], [1], ["autoregressive"]), settings)
    assert settings.xla_flags == section.known["settings"]["xla_flags"] == "--a --b"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--geometry or --model"),
        (("--geometry", "qwen9"), "qwen9"),
        (("--geometry", "nld-3b", "--method", "magic"), "magic"),
        (("--geometry", "nld-3b", "--prompts", "no.jsonl"), "no.jsonl"),
        (("--model", "m", "--task", "chess"), "no task 'chess'"),
        (("--geometry", "nld-3b", "--method", "vanilla", "--task", "all"), "--task need a model"),
        (("--geometry", "nld-3b", "--method", "vanilla", "--threshold", 2), "threshold"),
        (("--model", "m", "--method", "dflash", "--task", "all"), "give one with --drafter"),
        (("--model", "m", "--method", "dflash", "--drafter", "d"), "--prompts or --task"),
        (("--geometry", "nld-3b", "--method", "dflash", "--drafter", "d"), "no --geometry"),
        (("--model", "m", "--method", "autoregressive", "--drafter", "d"), "--drafter has no effect"),
        (("--model", "m", "--method", "autoregressive", "--block-size", 8), "--block-size has no effect"),
        (("--model", "m", "--method", "autoregressive", "--temperature", -1), "temperature"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(run, arguments, message):
    outcome = run("decode", *arguments)
    assert isinstance(outcome.exception, InputError)
    assert message in str(outcome.exception)
