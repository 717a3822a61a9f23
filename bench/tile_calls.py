"""Attention of branches in tiles that are tried, each as a call that can be repeated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Array

from bench.repeated import Repeated, waiting
from bench.row_kernels import CALLS, ROUNDS
from pallas_kernels.triton.attention import Tiles, branch_attention
from pallas_kernels.tuned_data import AttentionShape

QUERIES_AND_WARPS = ((16, 2), (16, 4), (32, 4), (64, 4), (128, 8))
KEYS_AND_STAGES = ((32, 3), (64, 2), (64, 3), (128, 2), (128, 3))

FOLDED = 0.6
"""Share of the drafts' rows that read main's."""


def candidates(shape: AttentionShape) -> list[Tiles]:
    """Tiles that are worth trying: a program has at least one slot and, above the smallest, not twice all of them."""
    group = pl.next_power_of_2(shape.group)
    return [
        Tiles(queries, keys, warps, stages)
        for queries, warps in QUERIES_AND_WARPS
        for keys, stages in KEYS_AND_STAGES
        if queries >= group and (queries == 16 or queries < 2 * shape.slots * group)
    ]


def repeated_attention(shape: AttentionShape, cache_tokens: int, tiles: Tiles) -> Repeated:
    """The launch in bfloat16: of a single branch as in vanilla decoding, which appends it to the cache; of several as
    in folded verification, where each row reads through a table. Dense verification takes the same tiles. The launch
    reads the cache itself, as where that is not long.
    """
    draws = np.random.default_rng(0)

    def draw(*sizes: int) -> Array:
        return jnp.asarray(draws.standard_normal(sizes, np.float32).astype(jnp.bfloat16))

    rows = shape.branches * shape.slots
    rotated = draw(rows, shape.kv_heads, shape.group + 2, shape.head_dim)
    buffer = (1, shape.kv_heads, cache_tokens + shape.slots, shape.head_dim)
    cached = draw(*buffer), draw(*buffer)
    scale = jnp.full((1, shape.slots), shape.head_dim**-0.5, jnp.float32)
    visible = jnp.full((1, shape.branches, shape.slots), shape.slots, jnp.int32)
    lengths = [jnp.full((1,), cache_tokens, jnp.int32) for _ in range(CALLS)]

    def attend(inputs: Any, lengths: Array) -> tuple[Array, Array, Array]:
        rotated, (keys, values), slot = inputs
        seen = lengths, lengths, scale, visible
        return branch_attention(rotated, slot, keys, values, *seen, append=shape.branches == 1, tiles=tiles)

    def append(inputs: Any, lengths: Array) -> Any:
        """Each call writes to the cache, and the next one reads that."""
        rotated, _, slot = inputs
        mixed, *cached = attend(inputs, lengths)
        rotated, mixed = jax.lax.optimization_barrier((rotated, mixed))
        return (rotated, tuple(cached), slot), mixed

    if shape.branches == 1:
        return Repeated(append, (rotated, cached, None), lengths, ROUNDS)
    own = np.arange(rows)
    read = np.where(draws.random(rows) < FOLDED, own % shape.slots, own)
    slot = jnp.asarray(read.reshape(1, shape.branches, shape.slots), jnp.int32)
    return Repeated(waiting(attend), (rotated, cached, slot), lengths, ROUNDS)
