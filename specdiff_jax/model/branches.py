"""One forward of several branches of a block: vanilla denoising, dense verification and folded verification.

They differ in the plan alone. With one branch it is the forward of vanilla decoding; where every row is computed, dense
verification (Spiffy); else rows that hardly differ from their parent's are folded (SpecFold, arXiv 2610.04875): they
read QKV, attention to the cache and feed-forward output of an ancestor, keep their own residual stream, and attend to
their own branch.

Rows stand side by side in groups that share compact tables: a batch row's branches and slots with plain JAX, which the
compiler can then spread over devices; those of all batch rows with kernels, so that a layer computes as many rows as
all of them need together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.feed_forward import add_through
from pallas_kernels.projection import normed_rows
from pallas_kernels.rows import BY_RESIDUAL, FORCED, IDLE, RowPlan, plan_rows
from specdiff_jax.folded_attention import FoldedAttention
from specdiff_jax.model.attention import Attention, LayerCache
from specdiff_jax.model.branch_attention import BranchRows, attend_branches
from specdiff_jax.model.layers import RMSNorm

Result = TypeVar("Result")


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
        capacities: numbers of rows of a batch row, ascending, the last one that of all of them; a layer computes as
            many as the smallest that holds its rows.
        attention: of folded rows.
        expected: rows of a batch row that the fullest layer is expected to compute, on the mean. The smallest capacity
            that holds them is then that of all layers, and the forward is of no use if a layer needs more. None lets
            every layer choose, which costs a GPU 18 us a layer.
    """

    parents: Int[Array, "batch branches"]
    forced: tuple[Bool[Array, "batch branches slots"], ...]
    whole: Bool[Array, "batch branches"]
    idle: Bool[Array, "batch branches"]
    delta: Float[Array, ""]
    capacities: tuple[int, ...] = field(metadata={"static": True})
    attention: FoldedAttention = field(default="split", metadata={"static": True})
    expected: Float[Array, ""] | None = None


class Gate(NamedTuple):
    """A folding, row by row of each group.

    Attributes:
        parents: each row's parent.
        rules: of every row, for the first layers; the last one holds for all others.
        capacities: numbers of rows of a group, ascending.
        folding: that it is of.
    """

    parents: Int[Array, "groups rows"]
    rules: tuple[Int[Array, "groups rows"], ...]
    capacities: tuple[int, ...]
    folding: Folding


class LayerReport(NamedTuple):
    """What a layer tells of its folding.

    Attributes:
        residual: relative residual of each row to its parent's.
        recomputed: rows that were computed.
        surviving: share of the softmax sum that the correction left (1 without it), the smallest of a row's heads.
        needed: compact places that it needed, of the group that needed most.
    """

    residual: Float[Array, "batch branches slots"]
    recomputed: Bool[Array, "batch branches slots"]
    surviving: Float[Array, "batch branches slots"]
    needed: Int[Array, ""]


class LayerResult(NamedTuple):
    """What a layer leaves behind.

    Attributes:
        hidden: residual streams.
        residual: of each row to its parent's; None without a gate.
        keys: that each branch reads for its own slots.
        values: likewise.
        surviving: as in `LayerReport`; None without a correction.
    """

    hidden: Float[Array, "groups rows hidden"]
    residual: Float[Array, "groups rows"] | None
    keys: Float[Array, "batch kv_heads branches slots head_dim"]
    values: Float[Array, "batch kv_heads branches slots head_dim"]
    surviving: Float[Array, "batch branches slots"] | None


class Layer(NamedTuple):
    """The parts of a decoder layer."""

    attention_norm: RMSNorm
    attention: Attention
    feed_forward_norm: RMSNorm
    feed_forward: Callable[[Array], Array]


def gate_of(folding: Folding, slots: int, groups: int) -> Gate:
    """The folding's rows in groups of equally many batch rows."""
    batch, branches = folding.parents.shape
    members = batch // groups
    branch = jnp.arange(members * branches, dtype=jnp.int32).reshape(1, members, branches)
    parents = (branch - branch % branches) + folding.parents.reshape(groups, members, branches).astype(jnp.int32)
    rows = parents[..., None] * slots + jnp.arange(slots, dtype=jnp.int32)

    def rule(forced: Array) -> Array:
        known = jnp.where(forced | folding.whole[..., None], FORCED, BY_RESIDUAL)
        return jnp.where(folding.idle[..., None], IDLE, known).astype(jnp.int32).reshape(groups, -1)

    nothing = jnp.zeros((batch, branches, slots), bool)
    return Gate(
        rows.reshape(groups, -1),
        tuple(rule(forced) for forced in (*folding.forced, nothing)),
        tuple(members * capacity for capacity in folding.capacities),
        folding,
    )


def run_layer(
    layer: Layer,
    hidden: Float[Array, "groups rows hidden"],
    residual: Float[Array, "groups rows"] | None,
    cached: LayerCache,
    rows: BranchRows,
    gate: Gate | None,
    index: int,
    capacity: int | None = None,
) -> tuple[LayerResult, LayerReport | None]:
    """One layer for all branches.

    Args:
        layer: its parts.
        hidden: residual streams before it.
        residual: of each row to its parent's.
        cached: the layer's keys and values of the cached tokens.
        rows: what all layers share.
        gate: what may be folded; None computes every row.
        index: which layer of the model it is.
        capacity: compact places; None takes as many as the plan needs.
    """
    if gate is None:
        return _compute(layer, hidden, cached, rows, None, None, hidden.shape[1]), None
    assert residual is not None
    plan = plan_rows(
        residual,
        gate.rules[min(index, len(gate.rules) - 1)],
        gate.folding.delta,
        gate.parents,
        generations=rows.visible.shape[1] - 1,
        implementation=rows.implementation,
    )

    def at(capacity: int) -> Callable[[], LayerResult]:
        return lambda: _compute(layer, hidden, cached, rows, gate, plan, capacity)

    needed = jnp.max(plan.count)
    result = at(capacity)() if capacity else at_smallest(gate.capacities, needed, at)
    shape = rows.visible.shape
    surviving = jnp.ones(shape, jnp.float32) if result.surviving is None else result.surviving
    return result, LayerReport(residual.reshape(shape), plan.recomputed.reshape(shape), surviving, needed)


def at_smallest(
    capacities: tuple[int, ...], needed: Int[Array, ""] | Float[Array, ""], at: Callable[[int], Callable[[], Result]]
) -> Result:
    """What `at` gives for the smallest capacity that holds the rows that are needed."""
    fitting = jnp.sum(needed > jnp.array(capacities[:-1], jnp.int32))
    return jax.lax.switch(fitting, [at(capacity) for capacity in capacities])


def _compute(
    layer: Layer,
    hidden: Array,
    cached: LayerCache,
    rows: BranchRows,
    gate: Gate | None,
    plan: RowPlan | None,
    places: int,
) -> LayerResult:
    """The rows of the plan in so many places, or all, and what the others make of them."""

    def normed(norm: RMSNorm, added: Array | None) -> Array:
        return normed_rows(
            hidden, added, norm.weight[...], norm.eps, plan, places=places, implementation=rows.implementation
        )

    correct = gate is not None and gate.folding.attention == "correct"
    x = normed(layer.attention_norm, None)
    mixed = attend_branches(layer.attention, x, cached, rows, plan, correct=correct)
    heads = mixed.heads.reshape(*hidden.shape[:2], *mixed.heads.shape[3:])
    attended = layer.attention.project_out(heads)
    x = normed(layer.feed_forward_norm, attended)
    fed = layer.feed_forward(x)
    parents = None if gate is None else gate.parents
    hidden, residual = add_through(hidden, attended, fed, plan, parents, implementation=rows.implementation)
    return LayerResult(hidden, residual, mixed.keys, mixed.values, mixed.surviving)
