"""Gate, compaction and sources in one launch (families 1 and 2)."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float, Int

from pallas_kernels.triton.launch import launch, number

ROWS = 32
"""That a program places."""
CHUNK = 512
"""Rows whose masks a program counts at a time."""


def plan_rows(
    residual: Float[Array, " rows"],
    rule: Int[Array, " rows"],
    delta: Float[Array, ""],
    parents: Int[Array, " rows"],
) -> tuple[Int[Array, " rows"], Int[Array, " rows"], Int[Array, " rows"], Int[Array, " rows"], Int[Array, " one"]]:
    """`recomputed` (0 or 1), `source`, `index`, `slot` and `count` of `pallas_kernels.rows.RowPlan`.

    A row's compact place is the number of computed rows before it. Every program counts them anew: that takes less time
    than a second launch, and no program waits for another.
    """
    rows = residual.size
    shape = jax.ShapeDtypeStruct((rows,), jnp.int32)
    recomputed, source, index, slot, count = launch(
        functools.partial(_kernel, rows=rows),
        "plan_rows",
        [shape, shape, shape, shape, jax.ShapeDtypeStruct((1,), jnp.int32)],
        (pl.cdiv(rows, ROWS),),
        residual,
        rule,
        delta.reshape(1),
        parents,
    )
    return recomputed, source, index, slot, count


def _kernel(
    residuals: Any,
    rules: Any,
    delta: Any,
    parents: Any,
    recomputed: Any,
    sources: Any,
    index: Any,
    slot: Any,
    count: Any,
    *,
    rows: int,
) -> None:
    program = pl.program_id(0)
    mine = program * ROWS + jnp.arange(ROWS, dtype=jnp.int32)
    valid = mine < rows
    limit = number(delta, 0)

    def computed(row: jax.Array, real: jax.Array) -> jax.Array:
        rule = plt.load(rules.at[row], mask=real, other=-1)
        residual = plt.load(residuals.at[row], mask=real, other=0.0)
        return (rule >= 0) & ((residual > limit) | (rule > 0))

    def unresolved(row: jax.Array) -> jax.Array:
        return valid & ~computed(row, valid)

    def climb(row: jax.Array) -> jax.Array:
        return jnp.where(unresolved(row), plt.load(parents.at[row], mask=valid, other=0), row)

    source = jax.lax.while_loop(lambda row: jnp.max(unresolved(row).astype(jnp.int32)) > 0, climb, mine)

    def before(chunk: jax.Array, counted: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        own, of_source, total = counted
        others = chunk * CHUNK + jnp.arange(CHUNK, dtype=jnp.int32)
        mask = computed(others, others < rows).astype(jnp.int32)
        own += jnp.sum(jnp.where(others[None, :] < mine[:, None], mask[None, :], 0), axis=1)
        of_source += jnp.sum(jnp.where(others[None, :] < source[:, None], mask[None, :], 0), axis=1)
        return own, of_source, total + jnp.sum(mask)

    nothing = jnp.zeros((ROWS,), jnp.int32)
    own, of_source, total = jax.lax.fori_loop(0, pl.cdiv(rows, CHUNK), before, (nothing, nothing, jnp.int32(0)))
    mask = computed(mine, valid)
    plt.store(recomputed.at[mine], mask.astype(jnp.int32), mask=valid)
    plt.store(sources.at[mine], source, mask=valid)
    plt.store(slot.at[mine], of_source, mask=valid)
    plt.store(index.at[own], mine, mask=valid & mask)

    # Places from `count` on, one for every row that is not computed, hold row 0.
    spare = total + mine - own
    plt.store(index.at[spare], jnp.zeros_like(mine), mask=valid & ~mask)
    plt.store(count.at[jnp.zeros((1,), jnp.int32)], jnp.full((1,), total, jnp.int32))
