"""Reading prompts into the cache, in chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int

from specdiff_jax.model.cache import KVCache, empty_cache
from specdiff_jax.model.decoder import Decoder

PREFILL_CHUNK = 512
"""Rows of one prefill forward; longer prompts go through in chunks, so that scores do not grow with prompt squared."""


@dataclass(frozen=True)
class Tap:
    """Reads along, chunk by chunk, so that no feature of a whole prompt is ever kept.

    Attributes:
        layers: of the target; their residual streams are the features.
        state: what it begins with, a pytree.
        read: (state, tokens, features, place of the first token) -> the state after a chunk.
    """

    layers: tuple[int, ...]
    state: Any
    read: Callable[[Any, Array, tuple[Array, ...], Array], Any]


def read_prompts(
    model: Decoder,
    prompts: Int[Array, "batch bucket"],
    lengths: Int[Array, " batch"],
    *,
    capacity: int,
    block: int | None = None,
    sharding: NamedSharding | None = None,
) -> tuple[KVCache, Float[Array, "batch hidden"]]:
    """Fill the cache with the first tokens of every prompt.

    Args:
        model: the target.
        prompts: ids; the width is a power of two.
        lengths: tokens of each prompt that are read.
        capacity: tokens that a cache row holds at least.
        block: tokens see their whole block of this size; None is causal.
        sharding: where the cache lives, for several devices.

    Returns:
        the cache, with these lengths, and the hidden state of the last token that was read (arbitrary where none was).
    """
    nothing = Tap((), None, lambda state, *_: state)
    return read_prompts_with(model, prompts, lengths, nothing, capacity=capacity, block=block, sharding=sharding)[:2]


def read_prompts_with(
    model: Decoder,
    prompts: Int[Array, "batch bucket"],
    lengths: Int[Array, " batch"],
    tap: Tap,
    *,
    capacity: int,
    block: int | None = None,
    sharding: NamedSharding | None = None,
) -> tuple[KVCache, Float[Array, "batch hidden"], Any]:
    """`read_prompts`, and the state of a tap at the end.

    Args:
        model: the target.
        prompts: as there.
        lengths: as there.
        tap: what reads along.
        capacity: as there.
        block: as there.
        sharding: as there.
    """
    batch, bucket = prompts.shape
    dtype = model.embedding[...].dtype
    chunk = _chunk(bucket, block or 1)
    chunks = -(-bucket // chunk)
    prompts = jnp.pad(prompts, ((0, 0), (0, chunks * chunk - bucket)))
    last = lengths - 1

    def read_chunk(index: Array, carry: tuple[KVCache, Array, Any]) -> tuple[KVCache, Array, Any]:
        cache, hidden, state = carry
        start = index * chunk
        tokens = jax.lax.dynamic_slice_in_dim(prompts, start, chunk, axis=1)
        visible = None if block is None else _whole_blocks(start + jnp.arange(chunk), block)
        output = model(
            tokens,
            cache.with_lengths(jnp.full((batch,), start, jnp.int32)),
            visible=None if visible is None else jnp.broadcast_to(visible, tokens.shape),
            taps=tap.layers,
        )
        assert output.cache is not None
        at = jnp.clip(last - start, 0, chunk - 1)
        here = jnp.take_along_axis(output.hidden, at[:, None, None], axis=1)[:, 0]
        hidden = jnp.where((last // chunk == index)[:, None], here, hidden)
        return output.cache, hidden, tap.read(state, tokens, output.features, start)

    carry = (
        empty_cache(model.config, batch, max(capacity, chunks * chunk), dtype, sharding),
        jnp.zeros((batch, model.config.hidden_size), dtype),
        tap.state,
    )
    if chunks == 1:
        cache, hidden, state = read_chunk(jnp.int32(0), carry)
    else:
        cache, hidden, state = jax.lax.fori_loop(0, chunks, read_chunk, carry)
    return cache.with_lengths(lengths), hidden, state


def _chunk(bucket: int, block: int) -> int:
    """Rows of a prefill forward: the whole bucket, or else whole blocks, since a block's rows see all of it."""
    return bucket if bucket <= PREFILL_CHUNK else max(PREFILL_CHUNK // block, 1) * block


def _whole_blocks(positions: Int[Array, " rows"], block: int) -> Int[Array, " rows"]:
    """Where each position's block ends."""
    return (positions // block + 1) * block
