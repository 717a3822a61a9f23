"""Steps and schedules against plain numpy."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_training import ADAMW, MUON

from specdiff_jax.train.optimizer import make_optimizer, make_schedule

STEPS = 10
SHAPES = {
    "embedding": (5, 4),
    "head": (5, 4),
    "norm.weight": (4,),
    "layers.0.attention.qkv": (6, 4),
    "layers.0.attention.qkv_bias": (6,),
    "layers.0.feed_forward.router": (3, 4),
}


def draw(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def two_steps(settings, params, gradients):
    """Parameters after two steps."""
    params = jax.tree.map(jnp.asarray, params)
    optimizer = make_optimizer(settings, STEPS, params)
    state, update = jax.jit(optimizer.init)(params), jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(gradient, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return params


def clipped(gradient: dict[str, np.ndarray], longest: float) -> dict[str, np.ndarray]:
    length = np.sqrt(sum(np.square(array).sum() for array in gradient.values()))
    return {name: array * min(1.0, longest / length) for name, array in gradient.items()}


def rate_at(step: int, peak: float) -> float:
    return peak * step / 2 if step < 2 else peak * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * (step - 2) / (STEPS - 2))))


def orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Five quintic Newton-Schulz steps from the matrix over its Frobenius norm."""
    x = matrix / np.linalg.norm(matrix)
    x, turned = (x.T, True) if x.shape[0] > x.shape[1] else (x, False)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if turned else x


@pytest.fixture(scope="module")
def problem():
    return draw(0), [clipped(draw(1), 1.0), clipped(draw(2), 1.0)]


def test_adamw_is_the_published_rule(problem):
    params, gradients = problem
    settings = replace(ADAMW, warmup_steps=1)
    found = two_steps(settings, params, [draw(1), draw(2)])
    for name, start in params.items():
        decay = settings.weight_decay if start.ndim == 2 and name != "embedding" else 0.0
        value, mean, square = start.astype(np.float64), 0.0, 0.0
        for step, gradient in enumerate(gradients):
            mean = 0.9 * mean + 0.1 * gradient[name]
            square = 0.95 * square + 0.05 * gradient[name] ** 2
            update = mean / (1 - 0.9 ** (step + 1)) / (np.sqrt(square / (1 - 0.95 ** (step + 1))) + 1e-8)
            value = value - (0.0, settings.learning_rate)[step] * (update + decay * value)
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_muon_takes_the_layers_matrices_and_decays_nothing_else(problem):
    params, gradients = problem
    settings = replace(MUON, warmup_steps=0, adam_learning_rate=0.003, decay="linear", final_fraction=1.0)
    found = two_steps(settings, params, [draw(1), draw(2)])
    name = "layers.0.attention.qkv"
    value, mean = params[name].astype(np.float64), 0.0
    for step, gradient in enumerate(gradients):
        mean = 0.95 * mean + 0.05 * gradient[name]
        ahead = 0.95 * mean / (1 - 0.95 ** (step + 2)) + 0.05 * gradient[name] / (1 - 0.95 ** (step + 1))
        update = orthogonal(ahead) * np.sqrt(6 / 4)
        value = value - settings.learning_rate * (update + settings.weight_decay * value)
    np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
    for other in SHAPES.keys() - {name}:
        # Two steps of Adam are at most about as long as the rate, each.
        change = np.abs(found[other] - params[other]).max()
        assert 0.003 < change < 0.01, other


def test_long_gradients_are_shortened(problem):
    params, _ = problem
    settings = replace(MUON, warmup_steps=0)
    once, tenfold = ({name: scale * array for name, array in draw(1).items()} for scale in (1.0, 10.0))
    found = [two_steps(settings, params, [gradient, draw(2)]) for gradient in (once, tenfold)]
    for name in params:
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-5, atol=1e-6)


def test_cosine_schedule():
    rate = make_schedule(ADAMW, 0.01, STEPS)
    np.testing.assert_allclose(
        [rate(step) for step in range(STEPS + 1)], [rate_at(s, 0.01) for s in range(STEPS + 1)], rtol=1e-5
    )


def test_linear_schedule_without_a_rise():
    rate = make_schedule(replace(ADAMW, decay="linear", warmup_steps=0), 0.01, STEPS)
    np.testing.assert_allclose([rate(0), rate(5), rate(10)], [0.01, 0.0055, 0.001], rtol=1e-6)
