"""One forward of several branches of a block: vanilla denoising, dense verification and folded verification.

They differ in the plan alone. With one branch it is the forward of vanilla decoding; where every row is computed, dense
verification (Spiffy); else rows that hardly differ from their parent's are folded (SpecFold, arXiv 2610.04875): they
read QKV, attention to the cache and feed-forward output of an ancestor, keep their own residual stream, and attend to
their own branch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.attention import SoftmaxState, block_state, merge, mixed_values, prefix_state
from pallas_kernels.correction import GUARD, correct
from pallas_kernels.rows import RowPlan, compact, plan_rows, read_through, relative_residual
from specdiff_jax.folded_attention import FoldedAttention
from specdiff_jax.model.attention import Attention, LayerCache
from specdiff_jax.model.layers import RMSNorm
from specdiff_jax.model.rotary import RotaryTable


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Folding:
    """What may be folded.

    Attributes:
        parents: each branch's parent, which stands before it; 0 for branch 0.
        forced: rows that are computed whatever their residual, for the first layers; for the others none are.
        whole: branches that are computed densely, branch 0 among them.
        idle: branches that nobody reads; nothing of them is computed.
        delta: relative residual up to which a row is folded; below 0 none is.
        capacities: numbers of rows, ascending, the last one that of all rows; a layer computes as many as the smallest
            that holds its rows.
        attention: of folded rows.
    """

    parents: Int[Array, "batch branches"]
    forced: tuple[Bool[Array, "batch branches slots"], ...]
    whole: Bool[Array, "batch branches"]
    idle: Bool[Array, "batch branches"]
    delta: Float[Array, ""]
    capacities: tuple[int, ...] = field(metadata={"static": True})
    attention: FoldedAttention = field(default="split", metadata={"static": True})


class Shared(NamedTuple):
    """What all layers of a forward share.

    Attributes:
        rotary: of every slot.
        lengths: tokens in the cache.
        gaps: the first of them that no row sees, and the place behind the last such one; None where all are seen.
        seen: which slots of its own branch each row sees.
        folding: what may be folded; None computes every row.
    """

    rotary: RotaryTable
    lengths: Int[Array, " batch"]
    gaps: Int[Array, "batch 2"] | None
    seen: Bool[Array, "batch branches slots keys"]
    folding: Folding | None


class LayerReport(NamedTuple):
    """What a layer tells of its folding.

    Attributes:
        residual: relative residual of each row to its parent's.
        recomputed: rows that were computed.
        surviving: share of the softmax sum that the correction left (1 without it), the smallest of a row's heads.
    """

    residual: Float[Array, "batch branches slots"]
    recomputed: Bool[Array, "batch branches slots"]
    surviving: Float[Array, "batch branches slots"]


class LayerResult(NamedTuple):
    """Residual streams behind a layer, and the keys and values that each branch reads."""

    hidden: Float[Array, "batch branches slots hidden"]
    keys: Float[Array, "batch branches slots kv_heads head_dim"]
    values: Float[Array, "batch branches slots kv_heads head_dim"]
    report: LayerReport | None


class Layer(NamedTuple):
    """The parts of a decoder layer."""

    attention_norm: RMSNorm
    attention: Attention
    feed_forward_norm: RMSNorm
    feed_forward: Callable[[Array], Array]


def run_layer(
    layer: Layer, hidden: Float[Array, "batch branches slots hidden"], cached: LayerCache, shared: Shared, index: int
) -> LayerResult:
    """One layer for all branches.

    Args:
        layer: its parts.
        hidden: residual streams before it.
        cached: the layer's keys and values of the cached tokens.
        shared: what all layers share.
        index: which layer of the model it is.
    """
    if shared.folding is None:
        return _compute(layer, hidden, cached, shared)
    folding = shared.folding
    residual = relative_residual(hidden, folding.parents)
    recomputed = residual > folding.delta
    if index < len(folding.forced):
        recomputed |= folding.forced[index]
    recomputed = (recomputed | folding.whole[..., None]) & ~folding.idle[..., None]
    plan = plan_rows(recomputed, folding.parents)

    def at(capacity: int) -> Callable[[], LayerResult]:
        fitted = dataclasses.replace(plan, index=plan.index[:, :capacity])
        return lambda: _compute(layer, hidden, cached, shared, fitted, residual)

    fitting = jnp.sum(jnp.max(plan.count) > jnp.array(folding.capacities[:-1], jnp.int32))
    return jax.lax.switch(fitting, [at(capacity) for capacity in folding.capacities])


def _compute(
    layer: Layer,
    hidden: Array,
    cached: LayerCache,
    shared: Shared,
    plan: RowPlan | None = None,
    residual: Array | None = None,
) -> LayerResult:
    """The rows of the plan, or all, and what the others make of them."""
    shape = hidden.shape[:3]

    def taken(rows: Array) -> Array:
        return rows.reshape(shape[0], -1, *rows.shape[3:]) if plan is None else compact(rows, plan.index)

    def read(table: Array) -> Array:
        return table.reshape(*shape, *table.shape[2:]) if plan is None else read_through(table, plan.slot)

    attention = layer.attention
    angles = jax.tree.map(lambda part: taken(_of_branches(part, shape[1])), shared.rotary)
    queries, keys, values = attention.project(layer.attention_norm(taken(hidden)), angles)
    before = SoftmaxState(*map(read, prefix_state(queries, *cached, shared.lengths, shared.gaps)))
    queries, keys, values = read(queries), read(keys), read(values)
    state = merge(before, block_state(queries, keys, values, shared.seen))
    report = None
    if plan is not None:
        assert shared.folding is not None
        assert residual is not None
        surviving = jnp.ones(shape, jnp.float32)
        if shared.folding.attention == "correct":
            state, surviving = _corrected(state, queries, keys, values, plan, shared.seen)
        report = LayerReport(residual, plan.recomputed, surviving)
    mixed = mixed_values(state).astype(hidden.dtype)
    hidden = hidden + attention.project_out(mixed.reshape(shape[0], -1, *mixed.shape[3:])).reshape(hidden.shape)
    hidden = hidden + read(layer.feed_forward(layer.feed_forward_norm(taken(hidden))))
    return LayerResult(hidden, keys, values, report)


def _corrected(
    state: SoftmaxState, queries: Array, keys: Array, values: Array, plan: RowPlan, seen: Array
) -> tuple[SoftmaxState, Array]:
    """States by the paper's correction, but where too little of the source's survives; and what survives."""
    ancestor = SoftmaxState(*(jnp.take_along_axis(part, _fitted(plan.source, part), axis=1) for part in state))
    corrected, surviving = correct(ancestor, queries, keys, values, plan.source, seen)
    kept = surviving >= GUARD
    chosen = SoftmaxState(
        *(jnp.where(_fitted(kept, ours), ours, direct) for ours, direct in zip(corrected, state, strict=True))
    )
    return chosen, jnp.min(surviving, axis=(3, 4))


def _fitted(rows: Array, array: Array) -> Array:
    """With axes of length 1 behind, as many as the array has more."""
    return rows.reshape(*rows.shape, *[1] * (array.ndim - rows.ndim))


def _of_branches(rows: Array, branches: int) -> Array:
    """The same for every branch."""
    return jnp.broadcast_to(rows[:, None], (rows.shape[0], branches, *rows.shape[1:]))
