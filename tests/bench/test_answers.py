"""Answers from end to end: what is counted, and that right and repetitive answers are told apart."""

from __future__ import annotations

import numpy as np
import pytest
from random_decoder import random_decoder, small_config

from bench import answers
from bench.answers import is_repetitive
from bench.tasks import problems
from specdiff_jax.decode.generate import generate
from specdiff_jax.decode.methods import Vanilla
from specdiff_jax.loading import Model

DIFFUSION = small_config(family="fast_dllm_v2", qkv_bias=True, block_size=8, mask_token_id=7)


@pytest.fixture
def tiny(monkeypatch):
    """Every geometry is a small diffusion model."""
    decoder = random_decoder(DIFFUSION)
    model = Model("tiny", DIFFUSION, decoder.graphdef, decoder.params, None, (5,))
    monkeypatch.setattr(answers, "open_target", lambda *_, **__: model)
    return model


def test_random_prompts_of_a_geometry(tiny):
    asked = {"random": True, "dtype": "float32", "devices": 1, "batch": 3, "max_new_tokens": 12, "repeats": 2}
    measured = answers.measure("tiny", method="vanilla", flags={"threshold": 1.0}, source={"random": 9}, **asked)
    assert measured["problems"] == 3
    assert measured["new_tokens"] == 36  # no stop id ends one
    assert measured["forwards"] >= 36 - 3
    assert measured["accuracy"] is measured["pooled_acceptance_length"] is None
    assert measured["seconds"] > 0
    assert measured["spread"] >= 1


def test_random_prompts_never_hold_the_mask():
    source = answers._open_source({"random": 500}, 2, 10, 7)
    assert sorted(np.unique(source.prompts)) == [0, 1, 2, 3, 4, 5, 6, 8, 9]


def test_answers_are_scored(tiny, monkeypatch):
    """An answer that is the worked one is right, any other is wrong."""
    drawn = problems("equations", "test", 0, 4)
    given = [drawn[0].answer, "x", drawn[2].answer, "y"]

    def worked(model, prompts, method, **options):
        assert prompts == [problem.prompt for problem in drawn]
        results = generate(tiny, [[1]] * 4, Vanilla(), max_new_tokens=4, batch_size=2)
        return [answers.dataclasses.replace(r, text=text) for r, text in zip(results, given, strict=True)]

    monkeypatch.setattr(answers.sd, "generate", worked)
    asked = {"random": False, "dtype": "float32", "devices": 1, "batch": 2, "max_new_tokens": 4, "repeats": 1}
    source = {"task": "equations", "count": 4, "seed": 0}
    measured = answers.measure("tiny", method="vanilla", flags={"threshold": 0.9}, source=source, **asked)
    assert measured["accuracy"] == 0.5


@pytest.mark.parametrize(("temperature", "block_size"), [(0.0, None), (0.8, 4)])
def test_answers_with_a_drafter(tiny_checkpoint, drafter_folder, tmp_path, temperature, block_size):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "two two"}\n{"prompt": "three"}\n')
    asked = {"random": False, "dtype": "float32", "devices": 1, "batch": 2, "max_new_tokens": 24, "repeats": 1}
    flags = {"drafter": str(drafter_folder), "block_size": block_size}
    measured = answers.measure(
        str(tiny_checkpoint),
        method="dflash",
        flags=flags,
        source={"file": str(prompts)},
        temperature=temperature,
        **asked,
    )
    assert measured["identical_to_baseline"] == 1
    pooled = (measured["new_tokens"] - 3) / measured["forwards"]
    assert measured["pooled_acceptance_length"] == pytest.approx(pooled)
    assert 1 <= measured["acceptance_length"] <= (block_size or 8)
    assert measured["fold_ratio"] is measured["accuracy"] is None


def test_repetitive_answers():
    assert not is_repetitive(range(200))
    assert not is_repetitive([1] * 39)
    assert is_repetitive([1] * 40)
    assert is_repetitive([*range(20)] * 3)
    assert not is_repetitive([*range(60), *range(20)])
