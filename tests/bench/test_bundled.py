"""The bundled models solve the tasks that they were trained on."""

from __future__ import annotations

import pytest

import specdiff_jax as sd
from bench.tasks import mixed_problems, score


@pytest.mark.parametrize(
    ("name", "method"), [("pico-fdv2", sd.Vanilla()), ("pico-nld", sd.Vanilla()), ("pico-ar", sd.Autoregressive())]
)
def test_a_bundled_model_solves_held_out_problems(name: str, method: sd.Method):
    drawn = mixed_problems("test", 1, 2)
    results = sd.generate(sd.load(name), [problem.prompt for problem in drawn], method, max_new_tokens=256)
    assert sum(score(drawn, [result.text for result in results])) >= 7
    if isinstance(method, sd.Vanilla):
        tokens, forwards = (sum(getattr(result, key) for result in results) for key in ("new_tokens", "forwards"))
        assert tokens > 1.8 * forwards
