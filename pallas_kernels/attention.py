"""Attention of several branches: to the cache once for each computed row, to its own branch for every row (family 4).

The parts are softmax states, which merge by log-sum-exp. What a row sees of the cache depends on its query alone, and
so is the same for all rows that read that query.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.contraction import contract


class SoftmaxState(NamedTuple):
    """An unfinished softmax over some keys, in float32.

    Attributes:
        max: largest score; -inf where there is no key.
        sum: of exp(score - max).
        acc: of exp(score - max) times the key's value.
    """

    max: Float[Array, "*rows kv_heads group"]
    sum: Float[Array, "*rows kv_heads group"]
    acc: Float[Array, "*rows kv_heads group head_dim"]


def prefix_state(
    queries: Float[Array, "batch rows kv_heads group head_dim"],
    keys: Float[Array, "batch kv_heads capacity head_dim"],
    values: Float[Array, "batch kv_heads capacity head_dim"],
    lengths: Int[Array, " batch"],
    gaps: Int[Array, "batch 2"] | None = None,
) -> SoftmaxState:
    """Attention to the first `lengths` cached tokens of each batch row outside [gaps[:, 0], gaps[:, 1]); the same ones
    for all rows.
    """
    scores = contract("bskgd,bktd->bksgt", queries, keys, jnp.float32) * queries.shape[-1] ** -0.5
    places = jnp.arange(keys.shape[2])
    seen = places < lengths[:, None]
    if gaps is not None:
        seen &= (places < gaps[:, :1]) | (places >= gaps[:, 1:])
    top, weights = _exponentials(scores, seen[:, None, None, None, :])
    acc = contract("bksgt,bktd->bksgd", weights.astype(values.dtype), values, jnp.float32)
    return SoftmaxState(*(jnp.swapaxes(part, 1, 2) for part in (top, weights.sum(axis=-1), acc)))


def block_state(
    queries: Float[Array, "batch branches slots kv_heads group head_dim"],
    keys: Float[Array, "batch branches slots kv_heads head_dim"],
    values: Float[Array, "batch branches slots kv_heads head_dim"],
    seen: Bool[Array, "batch branches slots keys"],
) -> SoftmaxState:
    """Attention of every row to slots of its own branch; each row sees at least one."""
    scores = contract("bxskgd,bxtkd->bxkgst", queries, keys, jnp.float32) * queries.shape[-1] ** -0.5
    top, weights = _exponentials(scores, seen[:, :, None, None])
    acc = contract("bxkgst,bxtkd->bxkgsd", weights.astype(values.dtype), values, jnp.float32)
    return SoftmaxState(*(jnp.moveaxis(part, 4, 2) for part in (top, weights.sum(axis=-1), acc)))


def merge(first: SoftmaxState, second: SoftmaxState) -> SoftmaxState:
    """The state over the keys of both; one of them has a key."""
    top = jnp.maximum(first.max, second.max)
    mine, others = jnp.exp(first.max - top), jnp.exp(second.max - top)
    return SoftmaxState(
        top,
        first.sum * mine + second.sum * others,
        first.acc * mine[..., None] + second.acc * others[..., None],
    )


def mixed_values(state: SoftmaxState) -> Float[Array, "*rows kv_heads group head_dim"]:
    """The values, weighted by the softmax."""
    return state.acc / state.sum[..., None]


def _exponentials(
    scores: Float[Array, "*rows keys"], seen: Bool[Array, "*#rows keys"]
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows keys"]]:
    """The largest score of each row (-inf without a key) and exp(score - it), 0 where nothing is seen."""
    scores = jnp.where(seen, scores, -jnp.inf)
    top = jnp.max(scores, axis=-1)
    return top, jnp.exp(scores - jnp.where(jnp.isneginf(top), 0.0, top)[..., None])
