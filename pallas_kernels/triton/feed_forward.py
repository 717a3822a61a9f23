"""The end of a layer in one launch: both residual sums, the second read through `slot`, and the next layer's gate
(families 6 and 1).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float, Int

from pallas_kernels.triton.launch import TINY, lanes, launch, number, put_row, row_of
from pallas_kernels.triton.projection import warps_of


def add_through(
    hidden: Float[Array, "rows size"],
    attended: Float[Array, "rows size"],
    fed: Float[Array, "places size"],
    slot: Int[Array, " rows"] | None,
    parents: Int[Array, " rows"] | None,
) -> tuple[Float[Array, "rows size"], Float[Array, " rows"] | None]:
    """`pallas_kernels.feed_forward.add_through`, a program a row; each works out its parent's sum as well."""
    rows, size = hidden.shape
    arguments = [hidden, attended, fed]
    results = [jax.ShapeDtypeStruct((rows, size), hidden.dtype)]
    if slot is not None:
        arguments.append(slot)
    if parents is not None:
        arguments.append(parents)
        results.append(jax.ShapeDtypeStruct((rows,), jnp.float32))
    kernel = functools.partial(_kernel, reads=slot is not None, gates=parents is not None)
    summed, *residual = launch(kernel, "add_through", results, (rows,), *arguments, warps=warps_of(size))
    return summed, residual[0] if residual else None


def _kernel(hidden: Any, attended: Any, fed: Any, *rest: Any, reads: bool, gates: bool) -> None:
    row = pl.program_id(0)
    columns = lanes(hidden.shape[1])

    def summed(of: jax.Array) -> jax.Array:
        middle = (row_of(hidden, of, columns) + row_of(attended, of, columns)).astype(hidden.dtype)
        read = row_of(fed, jnp.minimum(number(rest[0], of), fed.shape[0] - 1) if reads else of, columns)
        return (middle.astype(jnp.float32) + read).astype(hidden.dtype)

    mine = summed(row)
    put_row(rest[int(reads) + int(gates)], row, columns, mine)
    if gates:
        parent = summed(number(rest[int(reads)], row)).astype(jnp.float32)
        apart = mine.astype(jnp.float32) - parent
        distance, norm = jnp.sqrt(jnp.sum(apart * apart)), jnp.sqrt(jnp.sum(parent * parent))
        plt.store(rest[-1].at[row], distance / jnp.maximum(norm, TINY))
