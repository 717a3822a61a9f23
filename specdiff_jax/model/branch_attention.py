"""Attention of several branches: to the cache and to the row's own branch."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.attention import SoftmaxState, block_state, merge, mixed_values, prefix_state
from pallas_kernels.correction import GUARD, correct_state
from pallas_kernels.implementation import Implementation
from pallas_kernels.rows import RowPlan, compact, read_through
from pallas_kernels.triton.attention import branch_attention
from pallas_kernels.triton.prefix_attention import in_two_launches, prefix_attention
from pallas_kernels.triton.projection import rotated_heads
from specdiff_jax.model.attention import Attention, LayerCache
from specdiff_jax.model.rotary import RotaryTable


class BranchRows(NamedTuple):
    """What the rows of a forward of branches share in every layer.

    Attributes:
        rotary: of every slot.
        scale: of every slot's scores.
        lengths: tokens in the cache.
        starts: first cached place that the branches take; None where that is behind all of them.
        visible: how many slots of its own branch each row sees.
        implementation: of what stands around the products.
        append: whether the only branch is written to the cache, whose arrays then stand for its keys and values; with
            kernels alone.
    """

    rotary: RotaryTable
    scale: Float[Array, "batch slots"]
    lengths: Int[Array, " batch"]
    starts: Int[Array, " batch"] | None
    visible: Int[Array, "batch branches slots"]
    implementation: Implementation
    append: bool = False


class BranchMixed(NamedTuple):
    """What attention gives.

    Attributes:
        heads: mixed values of every row.
        keys: that each branch reads for its own slots.
        values: likewise.
        surviving: share of the softmax sum that a correction left, the smallest of a row's heads.
    """

    heads: Float[Array, "batch branches slots kv_heads group head_dim"]
    keys: Float[Array, "batch kv_heads branches slots head_dim"]
    values: Float[Array, "batch kv_heads branches slots head_dim"]
    surviving: Float[Array, "batch branches slots"] | None


def attend_branches(
    attention: Attention,
    x: Float[Array, "groups places hidden"],
    cached: LayerCache,
    rows: BranchRows,
    plan: RowPlan | None,
    *,
    correct: bool,
) -> BranchMixed:
    """Attention of every row, from the normed rows that a plan computes.

    Args:
        attention: the layer's.
        x: normed rows in compact places.
        cached: keys and values of the cached tokens.
        rows: what all layers share.
        plan: whose place each row reads; None where places are rows.
        correct: whether folded rows correct their source's softmax state, instead of attending to their own branch.
    """
    if rows.implementation == "triton":
        return _with_kernels(attention, attention.products(x)[0], cached, rows, plan)
    return _step_by_step(attention, attention.projected(x), cached, rows, plan, correct=correct)


def score_scale(rotary: RotaryTable, head_dim: int) -> Float[Array, "batch slots"]:
    """Multiplier of each slot's scores: head_dim^-0.5, times the query scale of a family that has one."""
    scale = jnp.full(rotary.cos.shape[:2], head_dim**-0.5, jnp.float32)
    return scale if rotary.query_scale is None else scale * rotary.query_scale


def _with_kernels(
    attention: Attention, products: Array, cached: LayerCache, rows: BranchRows, plan: RowPlan | None
) -> BranchMixed:
    index, count = (None, None) if plan is None else (plan.index[0], plan.count)
    angles = (rows.rotary.cos, rows.rotary.sin)
    bias = attention.bias_of_heads
    heads = rotated_heads(products, bias, index, count, *angles, rows.visible.shape[1], attention.head_norm)
    return attend_rotated(heads, cached, rows, plan)


def attend_rotated(
    heads: Float[Array, "places kv_heads group_key_value head_dim"],
    cached: LayerCache,
    rows: BranchRows,
    plan: RowPlan | None,
) -> BranchMixed:
    """Attention of every row through kernels, from queries, keys and values in their places.

    Args:
        heads: of the rows that a plan computes, at their positions.
        cached: keys and values of the cached tokens.
        rows: what all layers share.
        plan: whose place each row reads; None where places are rows.
    """
    index, count, slot = (
        (None,) * 3 if plan is None else (plan.index[0], plan.count, plan.slot.reshape(rows.visible.shape))
    )
    starts = rows.lengths if rows.starts is None else rows.starts
    of_texts = (*cached, rows.lengths, starts, rows.scale)
    before = None
    if in_two_launches(heads, cached[0].shape[2], gathers=plan is not None):
        before = prefix_attention(heads, index, count, *of_texts, rows.visible.shape[1])
    mixed, keys, values = branch_attention(heads, slot, *of_texts, rows.visible, before, append=rows.append)
    return BranchMixed(mixed, keys, values, None)


def _step_by_step(
    attention: Attention,
    projected: Array,
    cached: LayerCache,
    rows: BranchRows,
    plan: RowPlan | None,
    *,
    correct: bool,
) -> BranchMixed:
    """In plain JAX: to the cache once for each compact row, to its own branch for every row, merged."""
    batch, branches, slots = shape = rows.visible.shape

    def of_places(part: Array) -> Array:
        each = jnp.broadcast_to(part[:, None], (batch, branches, *part.shape[1:])).reshape(batch, -1, *part.shape[2:])
        return each if plan is None else compact(each, plan.index[:, : projected.shape[1]])

    def read(table: Array) -> Array:
        return (table if plan is None else read_through(table, plan.slot)).reshape(*shape, *table.shape[2:])

    queries, keys, values = attention.rotated(projected, jax.tree.map(of_places, rows.rotary))
    gaps = None if rows.starts is None else jnp.stack([rows.starts, rows.starts + slots], axis=1)
    before = SoftmaxState(*map(read, prefix_state(queries, *cached, rows.lengths, gaps)))
    queries, keys, values = read(queries), read(keys), read(values)
    seen = jnp.arange(slots, dtype=jnp.int32) < rows.visible[..., None]
    state, surviving = merge(before, block_state(queries, keys, values, seen)), None
    if correct:
        assert plan is not None
        source = plan.source.reshape(shape) // slots
        state, surviving = _corrected(state, queries, keys, values, source, seen)
    mixed = mixed_values(state).astype(projected.dtype)
    return BranchMixed(mixed, jnp.moveaxis(keys, 3, 1), jnp.moveaxis(values, 3, 1), surviving)


def _corrected(
    state: SoftmaxState, queries: Array, keys: Array, values: Array, source: Array, seen: Array
) -> tuple[SoftmaxState, Array]:
    """States by the paper's correction, but where too little of the source's survives; and what survives."""
    ancestor = SoftmaxState(*(jnp.take_along_axis(part, _fitted(source, part), axis=1) for part in state))
    corrected, surviving = correct_state(ancestor, queries, keys, values, source, seen)
    kept = surviving >= GUARD
    chosen = SoftmaxState(
        *(jnp.where(_fitted(kept, ours), ours, direct) for ours, direct in zip(corrected, state, strict=True))
    )
    return chosen, jnp.min(surviving, axis=(3, 4))


def _fitted(rows: Array, array: Array) -> Array:
    """With axes of length 1 behind, as many as the array has more."""
    return rows.reshape(*rows.shape, *[1] * (array.ndim - rows.ndim))
