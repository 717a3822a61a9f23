"""How the kernels are launched, and what all of them need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

LOWEST = -1e30
"""Stands for minus infinity, whose differences would be NaN."""

TINY = 1e-30
"""Stands for a sum or a norm of 0 that something is divided by."""

INTERPRET = False
"""Run kernels without a GPU; tests set it."""


def launch(
    kernel: Callable[..., None],
    name: str,
    results: Sequence[jax.ShapeDtypeStruct],
    grid: tuple[int, ...],
    *arguments: jax.Array,
    warps: int = 4,
    stages: int = 2,
    aliases: Mapping[int, int] | None = None,
) -> list[jax.Array]:
    """Run a kernel over a grid; the compiler is named, since which one is jax's default depends on its version.

    Args:
        kernel: takes a reference for every argument, then one for every result.
        name: in profiles.
        results: shapes and dtypes.
        grid: programs.
        arguments: arrays.
        warps: of a program.
        stages: of software pipelining.
        aliases: arguments that are overwritten, and the results that take their place.
    """
    call = pl.pallas_call(
        kernel,
        grid=grid,
        out_shape=list(results),
        compiler_params=plt.CompilerParams(num_warps=warps, num_stages=stages),
        input_output_aliases=dict(aliases or {}),
        interpret=INTERPRET,
        name=name,
    )
    return list(call(*arguments))


def lanes(size: int, least: int = 16) -> jax.Array:
    """0, 1, ... for an axis of that size, and on to a power of two: Triton takes no other sizes."""
    return jnp.arange(max(least, pl.next_power_of_2(size)), dtype=jnp.int32)


def number(array: Any, *index: jax.Array | int) -> jax.Array:
    """A single element."""
    return plt.load(array.at[tuple(jnp.int32(of) for of in index)])


def row_of(array: Any, row: jax.Array, columns: jax.Array) -> jax.Array:
    """A row of a two-dimensional array in float32; 0 in columns that it does not have."""
    at = array.at[jnp.full_like(columns, row), columns]
    return plt.load(at, mask=columns < array.shape[1], other=0.0).astype(jnp.float32)


def put_row(array: Any, row: jax.Array, columns: jax.Array, values: jax.Array) -> None:
    """Write a row of a two-dimensional array."""
    at = array.at[jnp.full_like(columns, row), columns]
    plt.store(at, values.astype(array.dtype), mask=columns < array.shape[1])
