"""The check itself: it passes where it should, sees what is wrong, and says what it needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import nnx
from gguf import GGMLQuantizationType
from tiny_gguf import write_gguf

import convert.check
from convert.assemble import load_parameters
from convert.check import MAX_LOGIT_DIFF, CheckReport, check
from specdiff_jax.conversion import convert_checkpoint
from specdiff_jax.errors import InputError

torch_families = pytest.importorskip("torch_families", reason="needs PyTorch and Transformers", exc_type=ImportError)
Saved = torch_families.Saved

TOLERANCE = 1e-4


@pytest.fixture
def two_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two random prompts in place of 20."""
    monkeypatch.setattr("convert.check._RANDOM_LENGTHS", (5, 9))


@pytest.mark.usefixtures("two_prompts")
@pytest.mark.parametrize(
    "family",
    ["qwen3_moe", "fast_dllm_v2", "nemotron_labs_diffusion", "nemotron_labs_diffusion, no query scale"],
)
def test_passes(saved: Callable[[str], Saved], family: str) -> None:
    report = check(saved(family).folder)
    assert report.family == family.partition(",")[0]
    assert report.layers == len(report.hidden_diffs) == (3 if family == "qwen3_moe" else 2)
    assert 0 < report.max_abs_logit_diff < TOLERANCE
    assert max(report.hidden_diffs) < TOLERANCE
    assert report.argmax_agreement == 1.0
    assert report.passed


@pytest.mark.usefixtures("two_prompts")
def test_sees_one_wrong_layer(saved: Callable[[str], Saved], monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*arguments: Any) -> nnx.State:
        params = load_parameters(*arguments)
        norm = params["layers"][1]["feed_forward_norm"]["weight"]
        norm[...] = norm[...] * 1.01
        return params

    monkeypatch.setattr("convert.check.load_parameters", damaged)
    report = check(saved("llama").folder)
    assert not report.passed
    assert report.hidden_diffs[0] < TOLERANCE < MAX_LOGIT_DIFF < report.hidden_diffs[1]
    assert report.max_abs_logit_diff > MAX_LOGIT_DIFF


def test_texts_of_a_checkpoint_with_a_tokenizer(tiny_checkpoint: Path) -> None:
    report = check(tiny_checkpoint, ["the quick fox", "a dog"], max_new_tokens=1)
    assert report.passed


@pytest.mark.usefixtures("two_prompts")
def test_passes_on_a_quantised_gguf(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "qwen2", GGMLQuantizationType.Q8_0)
    assert check(tmp_path / "model.gguf").passed


@pytest.mark.parametrize(
    ("logit_diff", "agreement", "passed"),
    [(0.0, 1.0, True), (MAX_LOGIT_DIFF, 1.0, True), (0.0021, 1.0, False), (0.0, 0.99, False), (np.nan, 1.0, False)],
)
def test_verdict(logit_diff: float, agreement: float, passed: bool) -> None:
    report = CheckReport("llama", logit_diff, agreement, (0.0, 0.0))
    assert report.passed is passed
    assert report.layers == 2


def test_nothing_is_lost_in_the_maximum() -> None:
    from convert.trace import Trace

    def trace(value: float) -> Trace:
        logits, hidden = np.zeros((2, 3), np.float32), np.zeros((1, 2, 4), np.float32)
        logits[1, 2] = hidden[0, 1, 3] = value
        return Trace(np.arange(3), 1, logits, hidden)

    same, other = (trace(0.0), trace(0.0)), (trace(0.0), trace(0.5))
    report = convert.check._report("llama", [same, other, same])
    assert (report.max_abs_logit_diff, report.hidden_diffs, report.argmax_agreement) == (0.5, (0.5,), 5 / 6)
    assert np.isnan(convert.check._report("llama", [(trace(np.nan), trace(0.0)), same]).max_abs_logit_diff)


def test_default_prompts_are_twenty_different_texts() -> None:
    path = Path(convert.check.__file__).parents[1] / "configs" / "check_prompts.json"
    prompts = json.loads(path.read_text(encoding="utf-8"))
    assert len(set(prompts)) == len(prompts) == 20
    assert all(0 < len(prompt) < 100 for prompt in prompts)


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        check(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_refusals(saved: Callable[[str], Saved], tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = saved("qwen2").folder
    assert "no tokenizer" in refusal(folder, ["a text"])
    assert "max_new_tokens" in refusal(folder, max_new_tokens=0)
    assert "at least one prompt" in refusal(tiny_checkpoint, [])
    assert "at least one token" in refusal(tiny_checkpoint, ["a", ""])
    converted = tmp_path / "converted"
    convert_checkpoint(folder, converted)
    assert "converted folder" in refusal(converted)


def test_weights_that_do_not_fit(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    folder = saved("qwen2").folder
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"intermediate_size": 71}))
    assert "model.layers.0.mlp.gate_proj.weight has shape (72, 48) instead of (71, 48)" in refusal(tmp_path)


def test_without_transformers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "convert.transformers_model", raising=False)
    assert "pip install 'specdiff-jax[check]'" in refusal(tmp_path)
