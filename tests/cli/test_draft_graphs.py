"""`specdiff calibrate`, and the graphs that `--method spiffy` takes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import specdiff_jax as sd

TEXTS = ("the dog", "the fox", "the lazy dog sleeps")
LIMIT = ("--max-new-tokens", 24)
SUMMARY_KEYS = ["graph", "prompts", "budget", "nodes", "depth", "content_hash", "seconds"]


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def calibrate(specdiff, tiny_diffusion_checkpoint, prompts) -> Callable[..., object]:
    """Runs `specdiff calibrate` on the small checkpoint; it takes the file to make and further flags."""

    def run(out: Path, *arguments: object):
        common = ("--model", tiny_diffusion_checkpoint, "--prompts", prompts, "--budget", 3, "--out", out, *LIMIT)
        return specdiff("calibrate", *common, *arguments)

    return run


@pytest.fixture
def with_graph(tiny_diffusion_checkpoint, tmp_path) -> Path:
    """The small checkpoint with a graph of its own: seven drafts that fit any model."""
    folder = shutil.copytree(tiny_diffusion_checkpoint, tmp_path / "model")
    sd.write_graph(sd.fixed_graph(7, 4), folder / "draft_graph.json")
    return folder


@pytest.fixture
def spiffy(specdiff, prompts) -> Callable[..., object]:
    """Runs `specdiff generate --method spiffy`; it takes the model and further flags."""

    def run(model: Path, *arguments: object):
        common = ("--model", model, "--method", "spiffy", "--prompts", prompts, *LIMIT)
        return specdiff("generate", *common, "--json", *arguments)

    return run


def vanilla(specdiff, model: Path, prompts: Path, *arguments: object) -> list[dict[str, object]]:
    common = ("--model", model, "--method", "vanilla", "--prompts", prompts, *LIMIT)
    return specdiff("generate", *common, "--json", *arguments).rows


def check_saves_forwards(drafted: list[dict[str, object]], plain: list[dict[str, object]]) -> None:
    assert [row["tokens"] for row in drafted] == [row["tokens"] for row in plain]
    assert sum(row["forwards"] for row in drafted) < sum(row["forwards"] for row in plain)


def test_calibrate_makes_the_graph_of_the_library(calibrate, tiny_diffusion_checkpoint, tmp_path):
    out = tmp_path / "graph.json"
    outcome = calibrate(out, "--threshold", 0.5, "--batch-size", 2, "--raw", "--dtype", "float32", "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
    (summary,) = outcome.rows
    assert list(summary) == SUMMARY_KEYS
    graph = sd.read_graph(out)
    assert summary | {"seconds": 0} == {
        "graph": str(out),
        "prompts": len(TEXTS),
        "budget": 3,
        "nodes": 3,
        "depth": graph.depth,
        "content_hash": graph.content_hash,
        "seconds": 0,
    }
    assert summary["seconds"] > 0
    model = sd.load(str(tiny_diffusion_checkpoint), dtype="float32")
    assert graph == sd.calibrate(model, TEXTS, sd.Vanilla(0.5), budget=3, max_new_tokens=24, batch_size=2, chat=False)


def test_the_same_prompts_give_the_same_file(calibrate, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    outcome = calibrate(first)
    assert outcome.stdout.startswith(f"{first}: 3 prompts, 3 nodes on ")
    assert outcome.stdout.count("\n") == 1
    assert calibrate(second).code == 0
    assert first.read_bytes() == second.read_bytes()


def test_a_graph_smaller_than_the_budget_is_a_warning(calibrate, tmp_path):
    out = tmp_path / "graph.json"
    with pytest.warns(UserWarning, match="fewer than the budget of 1000"):
        outcome = calibrate(out, "--budget", 1000, "--json")
    assert outcome.code == 0
    (summary,) = outcome.rows
    assert summary["nodes"] == sd.read_graph(out).budget < summary["budget"] == 1000


def test_spiffy_gives_the_tokens_of_vanilla_in_fewer_forwards(
    specdiff, calibrate, spiffy, tiny_diffusion_checkpoint, prompts, tmp_path
):
    graph = tmp_path / "graph.json"
    calibrate(graph)
    drafted = spiffy(tiny_diffusion_checkpoint, "--graph", graph, "--budget", 2)
    assert drafted.code == 0, drafted.stderr
    check_saves_forwards(drafted.rows, vanilla(specdiff, tiny_diffusion_checkpoint, prompts))
    assert sum(row["accepted_drafts"] for row in drafted.rows) > 0


def test_the_graph_in_the_model_s_folder_is_the_default(specdiff, spiffy, with_graph, prompts):
    drafted = spiffy(with_graph)
    assert drafted.code == 0, drafted.stderr
    check_saves_forwards(drafted.rows, vanilla(specdiff, with_graph, prompts))


def test_without_a_graph(refused, tiny_diffusion_checkpoint):
    line = refused("generate", "--model", tiny_diffusion_checkpoint, "--method", "spiffy", "--prompt", "a")
    assert f"{tiny_diffusion_checkpoint} has no draft graph of its own" in line
    assert "make one with specdiff calibrate and give it with --graph" in line


@pytest.fixture
def refused_graph(refused, tiny_diffusion_checkpoint, tmp_path) -> Callable[..., str]:
    """Gives spiffy a file of that content (None: no file), asserts that it is refused, and returns the line."""

    def run(content: str | None, *arguments: object) -> str:
        path = tmp_path / "given.json"
        if content is not None:
            path.write_text(content)
        common = ("--model", tiny_diffusion_checkpoint, "--method", "spiffy", "--prompt", "a", "--json")
        return refused("generate", *common, "--graph", path, *arguments)

    return run


def test_an_absent_graph(refused_graph):
    assert "given.json: cannot be read" in refused_graph(None)


def test_a_truncated_graph(refused_graph, with_graph):
    whole = (with_graph / "draft_graph.json").read_text()
    assert "given.json: not valid JSON" in refused_graph(whole[: len(whole) // 2])


def test_a_changed_graph(refused_graph, with_graph):
    content = json.loads((with_graph / "draft_graph.json").read_text())
    content["nodes"][0]["pairs"] = [[5, 0]]
    assert "given.json: " in refused_graph(json.dumps(content))


def test_a_budget_above_that_of_the_graph(refused_graph, with_graph):
    content = (with_graph / "draft_graph.json").read_text()
    assert "budget must be from 1 to 7, the nodes of the graph, not 8" in refused_graph(content, "--budget", 8)
    assert "not 0" in refused_graph(content, "--budget", 0)


@pytest.mark.slow
def test_a_graph_of_another_model_is_taken_only_by_force(
    specdiff, refused_graph, calibrate, spiffy, tiny_diffusion_checkpoint, prompts, tmp_path
):
    graph = tmp_path / "graph.json"
    calibrate(graph)
    made = sd.read_graph(graph)
    foreign = replace(made, key=replace(made.key, model="0123456789abcdef"))
    sd.write_graph(foreign, tmp_path / "foreign.json")
    line = refused_graph((tmp_path / "foreign.json").read_text())
    assert 'the draft graph was made for model "0123456789abcdef", not "' in line
    assert "or force it" in line
    forced = spiffy(tiny_diffusion_checkpoint, "--graph", tmp_path / "foreign.json", "--force")
    assert forced.code == 0, forced.stderr
    check_saves_forwards(forced.rows, vanilla(specdiff, tiny_diffusion_checkpoint, prompts))


def test_the_threshold_is_that_of_the_graph_and_no_other(
    refused_graph, calibrate, spiffy, tiny_diffusion_checkpoint, tmp_path
):
    graph = tmp_path / "graph.json"
    calibrate(graph, "--threshold", 0.5)
    taken = spiffy(tiny_diffusion_checkpoint, "--graph", graph)
    assert taken.code == 0, taken.stderr
    assert "made for threshold 0.5, not 0.9" in refused_graph(graph.read_text(), "--threshold", 0.9)


@pytest.mark.parametrize("flag", ["--drafter", "--delta", "--block-size"])
def test_flags_that_spiffy_does_not_read(refused, flag):
    line = refused("generate", "--model", "m", "--method", "spiffy", "--prompt", "a", flag, "1")
    assert f"{flag} has no effect with --method spiffy" in line


@pytest.fixture
def refused_calibration(refused, tiny_diffusion_checkpoint, prompts, tmp_path) -> Callable[..., str]:
    """Runs `specdiff calibrate`, asserts that it is refused and leaves no file, and returns the line."""

    def run(*arguments: object) -> str:
        out = tmp_path / "graph.json"
        common = ("--model", tiny_diffusion_checkpoint, "--prompts", prompts, "--budget", 3, "--out", out)
        line = refused("calibrate", *common, *LIMIT, *arguments)
        assert not out.exists()
        return line

    return run


def test_out_is_checked_before_the_model_is_loaded(refused_calibration, prompts, tmp_path):
    before = prompts.read_bytes()
    line = refused_calibration("--model", tmp_path / "absent", "--out", prompts)
    assert f"{prompts}: exists already" in line
    assert prompts.read_bytes() == before
    line = refused_calibration("--model", tmp_path / "absent", "--out", tmp_path / "nowhere" / "graph.json")
    assert "nowhere: is no folder" in line


def test_prompts_that_can_not_be_calibrated_on(refused_calibration, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert "empty.jsonl is empty" in refused_calibration("--prompts", empty)
    assert "absent.jsonl can't be read" in refused_calibration("--prompts", tmp_path / "absent.jsonl")
    assert "calibration prompts give no masked step" in refused_calibration("--max-new-tokens", 1)


def test_a_model_that_is_no_diffusion_model(refused_calibration, tiny_checkpoint):
    assert "a llama model is no diffusion model" in refused_calibration("--model", tiny_checkpoint)


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("--budget", 0, "'--budget'"),
        ("--batch-size", 0, "'--batch-size'"),
        ("--threshold", 1.5, "threshold must be above 0 and at most 1, not 1.5"),
        ("--max-new-tokens", 0, "max_new_tokens must be at least 1, not 0"),
        ("--max-new-tokens", 4096, "4096 new ones exceed the context of 512 tokens"),
    ],
)
def test_numbers_out_of_range(refused_calibration, flag, value, reason):
    assert reason in refused_calibration(flag, value)
