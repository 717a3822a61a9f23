"""The drafter in training: many blocks of packed texts in one forward.

Each block is filled as in decoding: it sees what its text holds before the anchor, and itself. Keys and values of the
context are made once a layer for all blocks. Attention goes through the blocks in chunks, so that scores of all blocks
against everything never exist together; the backward pass makes each chunk's again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdiff_jax.drafter_config import DraftAttention
from specdiff_jax.model.attention import attend, flash_attend
from specdiff_jax.model.drafter import BlockDrafter, DrafterLayer
from specdiff_jax.model.rotary import rotary_table

_CHUNK_QUERIES = 256
"""Rows of blocks that attend together: each also scores, for nothing, the other blocks of its chunk."""


class PackedContext(NamedTuple):
    """Texts side by side, as blocks read them.

    Attributes:
        rows: what the drafter reads of each token (`BlockDrafter.context`).
        positions: place of each token in its text.
        segments: number of the text; a token sees none of another one.
    """

    rows: Float[Array, "batch width hidden"]
    positions: Int[Array, "batch width"]
    segments: Int[Array, "batch width"]


class _Blocks(NamedTuple):
    """Where blocks stand: the column of each anchor, the number of its text, and every slot's place in that text."""

    anchors: Int[Array, "batch blocks"]
    segments: Int[Array, "batch blocks"]
    places: Int[Array, "batch blocks slots"]


def fill_blocks(
    drafter: BlockDrafter,
    context: PackedContext,
    anchors: Int[Array, "batch blocks"],
    embedded: Float[Array, "batch blocks slots hidden"],
) -> Float[Array, "batch blocks slots hidden"]:
    """Fill blocks, none of which sees another.

    Args:
        drafter: the module.
        context: the texts.
        anchors: column of each block's anchor.
        embedded: embeddings of each anchor and of masks.

    Returns:
        the blocks' rows after the drafter's final norm.
    """
    batch, count, slots, _ = embedded.shape
    config = drafter.config
    starts = jnp.take_along_axis(context.positions, anchors, axis=1)
    places = starts[..., None] + jnp.arange(slots, dtype=jnp.int32)
    blocks = _Blocks(anchors, jnp.take_along_axis(context.segments, anchors, axis=1), places)
    context_rotary = rotary_table(config.backbone.rotary, context.positions)
    block_rotary = rotary_table(config.backbone.rotary, places.reshape(batch, -1))
    injected = config.conditioning == "key_value"
    x = embedded.reshape(batch, count * slots, -1)
    for layer in drafter.layers:
        queries, keys, values = layer.heads(
            context.rows if injected else layer.attention_norm(context.rows), context_rotary
        )
        mixed = _attend_blocks(layer, layer.heads(layer.attention_norm(x), block_rotary), keys, values, context, blocks)
        if not injected:
            seen = _causal_pattern(context, layer.sees.window)
            context = context._replace(rows=layer.finish(context.rows, _attend(layer, queries, keys, values, seen)))
        x = layer.finish(x, mixed)
    return drafter.norm(x).reshape(embedded.shape)


def by_chunks(function: Callable[..., Any], arrays: Sequence[Array], most: int) -> Any:
    """Apply a function to chunks along the second axis, one after the other; the backward pass runs it again.

    Args:
        function: from chunks of the arrays to a pytree of arrays, [batch, chunk, ...] all of them.
        arrays: what to cut; where they don't divide evenly, zeros fill the last chunk.
        most: entries of a chunk at most.
    """
    batch, count = arrays[0].shape[:2]
    chunks = -(-count // most)
    size = -(-count // chunks)

    def cut(array: Array) -> Array:
        filled = jnp.pad(array, ((0, 0), (0, chunks * size - count), *((0, 0),) * (array.ndim - 2)))
        return filled.reshape(batch, chunks, size, *array.shape[2:]).swapaxes(0, 1)

    done = jax.lax.map(lambda given: jax.checkpoint(function)(*given), tuple(map(cut, arrays)))
    return jax.tree.map(
        lambda array: array.swapaxes(0, 1).reshape(batch, chunks * size, *array.shape[3:])[:, :count], done
    )


def _attend_blocks(
    layer: DrafterLayer,
    heads: tuple[Array, Array, Array],
    context_keys: Float[Array, "batch kv_heads width head_dim"],
    context_values: Float[Array, "batch kv_heads width head_dim"],
    context: PackedContext,
    blocks: _Blocks,
) -> Float[Array, "batch rows kv_heads group head_dim"]:
    """Mixed values of all blocks' rows."""
    queries, keys, values = heads
    batch, _, slots = blocks.places.shape

    def chunk(queries: Array, keys: Array, values: Array, *place: Array) -> Array:
        merged = queries.reshape(batch, -1, *queries.shape[3:])
        own = [array.reshape(batch, -1, *array.shape[3:]).swapaxes(1, 2) for array in (keys, values)]
        known, mixable = (
            jnp.concatenate(pair, axis=2) for pair in zip((context_keys, context_values), own, strict=True)
        )
        seen = _block_pattern(layer.sees, context, _Blocks(*place))
        return _attend(layer, merged, known, mixable, seen).reshape(queries.shape)

    by_block = [
        array.reshape(batch, -1, slots, *array.shape[2:]) for array in (queries, *map(_rows_first, (keys, values)))
    ]
    mixed = by_chunks(chunk, (*by_block, *blocks), max(1, _CHUNK_QUERIES // slots))
    return mixed.reshape(queries.shape)


def _rows_first(array: Float[Array, "batch kv_heads rows head_dim"]) -> Float[Array, "batch rows kv_heads head_dim"]:
    return array.swapaxes(1, 2)


def _attend(
    layer: DrafterLayer, queries: Array, keys: Array, values: Array, seen: Bool[Array, "batch rows keys"]
) -> Float[Array, "batch rows kv_heads group head_dim"]:
    even = queries.shape[1] % 2 == 0 and keys.shape[2] % 2 == 0  # as cuDNN's gradient of a masked product asks
    if layer.attention.flash and layer.sinks is None and even:
        return flash_attend(queries, keys, values, seen)
    return attend(queries, keys, values, seen, None if layer.sinks is None else layer.sinks[...])


def _causal_pattern(context: PackedContext, window: int | None) -> Bool[Array, "batch width width"]:
    """Which tokens of the context its own rows see, where they go through the layers."""
    width = context.positions.shape[1]
    same_text = context.segments[:, :, None] == context.segments[:, None, :]
    return same_text & jnp.tri(width, dtype=bool) & _near(context.positions, context.positions, window)


def _block_pattern(sees: DraftAttention, context: PackedContext, blocks: _Blocks) -> Bool[Array, "batch rows keys"]:
    """Which keys each row of some blocks sees: the context's first, then those of the blocks."""
    batch, count, slots = blocks.places.shape
    rows = blocks.places.reshape(batch, -1)
    columns = jnp.arange(context.positions.shape[1])
    before = (columns < blocks.anchors[..., None]) & (context.segments[:, None, :] == blocks.segments[..., None])
    known = jnp.repeat(before, slots, axis=1) & _near(rows, context.positions, sees.window)
    numbers = jnp.repeat(jnp.arange(count), slots)
    inside = (numbers[:, None] == numbers) & _near(rows, rows, sees.window)
    if sees.causal:
        inside = inside & (rows[:, None, :] <= rows[:, :, None])
    return jnp.concatenate([known, inside], axis=-1)


def _near(
    rows: Int[Array, "batch rows"], keys: Int[Array, "batch keys"], window: int | None
) -> Bool[Array, "batch rows keys"]:
    if window is None:
        return jnp.ones((*rows.shape, keys.shape[1]), bool)
    return jnp.abs(rows[:, :, None] - keys[:, None, :]) < window
