"""Which rows of several branches are computed, and whose results the others read (families 1 and 2).

A branch whose residual stream hardly differs from its parent's in a slot *folds* that row: it reads what the nearest
recomputed ancestor has computed there (SpecFold, arXiv 2610.04875). Computed rows stand side by side in compact tables;
all others read through `slot`, so that nothing is copied from parent to child.

Rows are counted through a group: the branches and slots of a batch row, or of several that share compact tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.implementation import Implementation
from pallas_kernels.triton import rows as triton
from pallas_kernels.triton.launch import TINY

IDLE, BY_RESIDUAL, FORCED = -1, 0, 1
"""Rules for a row: never computed, computed where its residual is large, always computed."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowPlan:
    """Where every row's results are.

    Attributes:
        recomputed: rows that are computed.
        source: for every row its nearest recomputed ancestor, itself included.
        index: for every compact place the row that is computed there, in order. Places from `count` on hold row 0.
        slot: for every row the compact place of its source.
        count: computed rows.
    """

    recomputed: Bool[Array, "groups rows"]
    source: Int[Array, "groups rows"]
    index: Int[Array, "groups places"]
    slot: Int[Array, "groups rows"]
    count: Int[Array, " groups"]


def relative_residual(
    hidden: Float[Array, "groups rows size"], parents: Int[Array, "groups rows"]
) -> Float[Array, "groups rows"]:
    """|h - h_parent| / |h_parent| of every row, in float32: the gate of SpecFold (section 3 of the paper).

    Args:
        hidden: residual streams.
        parents: each row's parent: the same slot of the parent branch. Rows of main are their own, and so at 0.
    """
    hidden = hidden.astype(jnp.float32)
    parent = read_through(hidden, parents)
    distance = jnp.sqrt(jnp.sum(jnp.square(hidden - parent), axis=-1))
    return distance / jnp.maximum(jnp.sqrt(jnp.sum(jnp.square(parent), axis=-1)), TINY)


def plan_rows(
    residual: Float[Array, "groups rows"],
    rule: Int[Array, "groups rows"],
    delta: Float[Array, ""],
    parents: Int[Array, "groups rows"],
    *,
    generations: int,
    implementation: Implementation = "xla",
) -> RowPlan:
    """The plan for the rows that the gate lets through.

    Args:
        residual: of every row.
        rule: `IDLE`, `BY_RESIDUAL` or `FORCED`; rows of main are forced, so that every row has an ancestor to read.
        delta: residual up to which a row is folded.
        parents: each row's parent, which stands before it.
        generations: at least the longest chain from a row up to main.
        implementation: "triton" takes one group.
    """
    if implementation == "triton":
        recomputed, source, index, slot, count = triton.plan_rows(residual[0], rule[0], delta, parents[0])
        return RowPlan(recomputed[None] > 0, source[None], index[None], slot[None], count)
    rows = residual.shape[1]
    recomputed = (rule >= BY_RESIDUAL) & ((residual > delta) | (rule == FORCED))
    source = jnp.where(recomputed, jnp.arange(rows, dtype=jnp.int32), parents.astype(jnp.int32))
    for _ in range(max(generations - 1, 0).bit_length()):  # each round doubles how many ancestors up a row looks
        source = jnp.take_along_axis(source, source, axis=1)
    place = jnp.cumsum(recomputed, axis=1, dtype=jnp.int32) - 1
    index = jax.vmap(
        lambda computed, at: (
            jnp.zeros(rows, jnp.int32).at[jnp.where(computed, at, rows)].set(jnp.arange(rows), mode="drop")
        )
    )(recomputed, place)
    slot = jnp.take_along_axis(place, source, axis=1)
    return RowPlan(recomputed, source, index, slot, jnp.sum(recomputed, axis=1, dtype=jnp.int32))


def compact(
    rows: Float[Array, "groups rows *size"], index: Int[Array, "groups places"]
) -> Float[Array, "groups places *size"]:
    """The rows of a plan, side by side."""
    return jax.vmap(lambda of, at: of[at])(rows, index)


def read_through(
    table: Float[Array, "groups places *size"], slot: Int[Array, "groups rows"]
) -> Float[Array, "groups rows *size"]:
    """What a compact table holds for every row."""
    return jax.vmap(lambda of, at: of[at])(table, slot)
