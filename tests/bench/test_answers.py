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
    assert measured["accuracy"] is None
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


def test_repetitive_answers():
    assert not is_repetitive(range(200))
    assert not is_repetitive([1] * 39)
    assert is_repetitive([1] * 40)
    assert is_repetitive([*range(20)] * 3)
    assert not is_repetitive([*range(60), *range(20)])
