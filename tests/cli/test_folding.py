"""`--method specfold` and `specdiff profile`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import specdiff_jax as sd

TEXTS = ("the dog", "the lazy dog sleeps")
LIMIT = ("--max-new-tokens", 24)


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def model(tiny_diffusion_checkpoint, tmp_path) -> Path:
    """The small checkpoint with three drafts that fit any model."""
    folder = shutil.copytree(tiny_diffusion_checkpoint, tmp_path / "model")
    sd.write_graph(sd.fixed_graph(3, 2), folder / "draft_graph.json")
    return folder


@pytest.fixture
def generate(specdiff, model, prompts) -> Callable[..., object]:
    """Runs `specdiff generate`; it takes the method and further flags."""

    def run(method: str, *arguments: object):
        common = ("--model", model, "--method", method, "--prompts", prompts, *LIMIT, "--dtype", "float32")
        return specdiff("generate", *common, *arguments)

    return run


def test_specfold_folds_up_to_its_delta(generate):
    spiffy = generate("spiffy", "--json").rows
    nothing = generate("specfold", "--delta", -1, "--json").rows
    assert [row["tokens"] for row in nothing] == [row["tokens"] for row in spiffy]
    assert [row["fold_ratio"] for row in nothing] == [0.0] * len(TEXTS)
    assert [row["fold_ratio"] for row in spiffy] == [None] * len(TEXTS)
    ratios = [row["fold_ratio"] for row in generate("specfold", "--json").rows]
    assert all(0 < ratio < 1 for ratio in ratios)


def test_counters_tell_the_fold_ratio(generate):
    assert "fold ratio 0." in generate("specfold").stderr


def test_delta_is_of_specfold_alone(generate):
    outcome = generate("spiffy", "--delta", 0.1)
    assert (outcome.code, outcome.stderr.count("\n")) == (2, 1)
    assert "--delta has no effect with --method spiffy" in outcome.stderr


def test_profile_writes_numbers_and_pictures(specdiff, model, prompts, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "profile"
    asked = ("profile", "--model", model, "--prompts", prompts, "--out", out, *LIMIT, "--batch-size", 2)
    outcome = specdiff(*asked, "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
    (summary,) = outcome.rows
    assert json.loads((out / "profile.json").read_text()) == summary
    assert summary["prompts"] == 2
    assert summary["drafts"] > 0
    assert 0 < summary["fold_ratio"] < 1
    assert len(summary["layers"]["fold_ratio"]) == 2
    assert {file.name for file in out.iterdir()} == {
        "profile.json",
        "layers.png",
        "heatmap.png",
        "ripple.png",
        "surviving.png",
    }
    again = specdiff(*asked)
    assert (again.code, again.stderr.count("\n")) == (2, 1)
    assert "exists already" in again.stderr


def test_profile_without_a_graph_is_refused(specdiff, tiny_diffusion_checkpoint, prompts, tmp_path):
    asked = ("--model", tiny_diffusion_checkpoint, "--prompts", prompts, "--out", tmp_path / "profile")
    outcome = specdiff("profile", *asked)
    assert (outcome.code, outcome.stderr.count("\n")) == (2, 1)
    assert "has no draft graph of its own" in outcome.stderr
    assert not (tmp_path / "profile").exists()
