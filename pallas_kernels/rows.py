"""Which rows of several branches are computed, and whose results the others read (families 1 and 2).

A branch whose residual stream hardly differs from its parent's in a slot *folds* that row: it reads what the nearest
recomputed ancestor has computed there (SpecFold, arXiv 2610.04875). Computed rows stand side by side in compact tables;
all others read through `slot`, so that nothing is copied from parent to child.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

_TINY = 1e-30
"""Stands for the norm of a row of zeros."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowPlan:
    """Where every row's results are.

    Attributes:
        recomputed: rows that are computed.
        source: for every row the branch of its nearest recomputed ancestor, itself included.
        index: for every compact place the row that is computed there, counted through branches and slots; those of
            branch 0 come first. Places from `count` on hold row 0.
        slot: for every row the compact place of its source.
        count: computed rows.
    """

    recomputed: Bool[Array, "batch branches slots"]
    source: Int[Array, "batch branches slots"]
    index: Int[Array, "batch places"]
    slot: Int[Array, "batch branches slots"]
    count: Int[Array, " batch"]


def relative_residual(
    hidden: Float[Array, "batch branches slots size"], parents: Int[Array, "batch branches"]
) -> Float[Array, "batch branches slots"]:
    """|h - h_parent| / |h_parent| of every row, in float32: the gate of SpecFold (section 3 of the paper).

    Args:
        hidden: residual streams.
        parents: each branch's parent; branch 0 is its own, so that its rows are at 0.
    """
    hidden = hidden.astype(jnp.float32)
    parent = jax.vmap(lambda rows, of: rows[of])(hidden, parents)
    distance = jnp.sqrt(jnp.sum(jnp.square(hidden - parent), axis=-1))
    return distance / jnp.maximum(jnp.sqrt(jnp.sum(jnp.square(parent), axis=-1)), _TINY)


def plan_rows(recomputed: Bool[Array, "batch branches slots"], parents: Int[Array, "batch branches"]) -> RowPlan:
    """The plan for rows that are to be computed.

    Args:
        recomputed: those rows; all of branch 0 are, so that every row has an ancestor to read.
        parents: each branch's parent, which stands before it.
    """
    batch, branches, slots = recomputed.shape
    own = jnp.arange(branches, dtype=jnp.int32)[:, None]
    source = jnp.where(recomputed, own, parents[..., None].astype(jnp.int32))
    for _ in range(max(branches - 2, 0).bit_length()):  # each round doubles how many ancestors up a row looks
        source = jnp.take_along_axis(source, source, axis=1)
    flat = recomputed.reshape(batch, -1)
    place = jnp.cumsum(flat, axis=1, dtype=jnp.int32) - 1
    rows = branches * slots
    index = jax.vmap(
        lambda computed, at: (
            jnp.zeros(rows, jnp.int32).at[jnp.where(computed, at, rows)].set(jnp.arange(rows), mode="drop")
        )
    )(flat, place)
    slot = jnp.take_along_axis(place.reshape(recomputed.shape), source, axis=1)
    return RowPlan(recomputed, source, index, slot, jnp.sum(flat, axis=1, dtype=jnp.int32))


def compact(
    rows: Float[Array, "batch branches slots *size"], index: Int[Array, "batch places"]
) -> Float[Array, "batch places *size"]:
    """The rows of a plan, side by side."""
    flat = rows.reshape(rows.shape[0], -1, *rows.shape[3:])
    return jax.vmap(lambda of, at: of[at])(flat, index)


def read_through(
    table: Float[Array, "batch places *size"], slot: Int[Array, "batch branches slots"]
) -> Float[Array, "batch branches slots *size"]:
    """What a compact table holds for every row."""
    return jax.vmap(lambda of, at: of[at])(table, slot)
