"""A softmax over keys that come tile by tile, for the queries of a program."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Bool, Float

from pallas_kernels.triton.launch import LOWEST

LOG2_E = 1.4426950408889634
"""Scores are multiplied by it, since powers of 2 are what the GPU computes."""


class State(NamedTuple):
    """An unfinished softmax over some keys, in float32.

    Attributes:
        peak: largest score, in powers of 2.
        mass: of 2^(score - peak).
        acc: of 2^(score - peak) times the key's value.
    """

    peak: Float[Array, " queries"]
    mass: Float[Array, " queries"]
    acc: Float[Array, "queries head_dim"]


def nothing(queries: int, head_dim: int) -> State:
    """The state over no keys."""
    return State(
        jnp.full((queries,), LOWEST, jnp.float32),
        jnp.zeros((queries,), jnp.float32),
        jnp.zeros((queries, head_dim), jnp.float32),
    )


def with_keys(
    state: State,
    queries: Float[Array, "queries head_dim"],
    scale: Float[Array, "queries 1"],
    keys: Float[Array, "keys head_dim"],
    values: Float[Array, "keys head_dim"],
    seen: Bool[Array, "#queries keys"],
) -> State:
    """The state with a tile of keys more.

    While a query has seen no key its peak is `LOWEST` and what it counts is of no use; the first key that it sees has a
    higher score, beside which that comes to nothing.
    """
    scores = jnp.where(seen, product(queries, keys.T) * scale, LOWEST)
    peak = jnp.maximum(state.peak, scores.max(axis=1))
    shrink = jnp.exp2(state.peak - peak)
    weights = jnp.exp2(scores - peak[:, None])
    acc = state.acc * shrink[:, None] + product(weights.astype(values.dtype), values)
    return State(peak, state.mass * shrink + weights.sum(axis=1), acc)


def merged(first: State, second: State) -> State:
    """The state over the keys of both."""
    peak = jnp.maximum(first.peak, second.peak)
    mine, others = jnp.exp2(first.peak - peak), jnp.exp2(second.peak - peak)
    return State(
        peak,
        first.mass * mine + second.mass * others,
        first.acc * mine[:, None] + second.acc * others[:, None],
    )


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """A product that keeps float32 at float32; bfloat16 loses nothing by it."""
    return plt.dot(a, b, precision=jax.lax.Precision.HIGHEST)
