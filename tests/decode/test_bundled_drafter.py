"""The bundled drafter with learned weights: the tokens of its target alone, in fewer forwards."""

from __future__ import annotations

import numpy as np
import pytest

import specdiff_jax as sd
from bench.tasks import TASK_NAMES, problems

PROBLEMS = 40
"""Of each of five tasks."""


@pytest.mark.slow
def test_exact_answers_are_those_of_the_target_alone() -> None:
    model = sd.load("pico-ar", dtype="float32")
    drafter = sd.load_drafter("pico-dflash", model)
    prompts = [problem.prompt for task in TASK_NAMES for problem in problems(task, "test", 3, PROBLEMS)]
    alone = sd.generate(model, prompts, sd.Autoregressive(), max_new_tokens=64, exact=True)
    drafted = sd.generate(model, prompts, sd.DFlash(drafter), max_new_tokens=64, exact=True)
    assert len(prompts) == 200
    assert [answer.tokens for answer in drafted] == [answer.tokens for answer in alone]
    assert np.mean([answer.acceptance_length for answer in drafted if answer.forwards]) > 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_accepted(temperature: float) -> None:
    """Most of a block, greedy; in blocks of 8 most of that."""
    model = sd.load("pico-ar", dtype="float32")
    drafter = sd.load_drafter("pico-dflash", model)
    prompts = [problem.prompt for problem in problems("equations", "test", 3, 4)]
    settings = {"max_new_tokens": 64, "temperature": temperature, "batch_size": 4}
    alone = sd.generate(model, prompts, sd.Autoregressive(), **settings)
    for width, least in ((16, 5.0), (8, 4.0)):
        drafted = sd.generate(model, prompts, sd.DFlash(drafter, width), **settings)
        assert [answer.tokens for answer in drafted] == [answer.tokens for answer in alone]
        assert np.mean([answer.acceptance_length for answer in drafted]) > least
