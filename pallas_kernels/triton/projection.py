"""What stands in front of a product and behind it, a launch each: gather, residual sum and RMSNorm; bias, norms of the
heads and rotary (family 3).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float, Int

from pallas_kernels.head_norm import HeadNorm
from pallas_kernels.triton.launch import lanes, launch, number, put_row, row_of


def normed_rows(
    hidden: Float[Array, "rows size"],
    added: Float[Array, "rows size"] | None,
    weight: Float[Array, " size"],
    eps: float,
    index: Int[Array, " rows"] | None,
    count: Int[Array, " one"] | None,
    places: int,
) -> Float[Array, "places size"]:
    """`pallas_kernels.projection.normed_rows`, a program a place; places from `count` on are zeros."""
    arguments = [hidden, weight]
    if added is not None:
        arguments.append(added)
    if index is not None:
        assert count is not None
        arguments += [index, count]
    kernel = functools.partial(_kernel, eps=eps, adds=added is not None, gathers=index is not None)
    shape = jax.ShapeDtypeStruct((places, hidden.shape[1]), hidden.dtype)
    return launch(kernel, "normed_rows", [shape], (places,), *arguments, warps=warps_of(hidden.shape[1]))[0]


def warps_of(size: int) -> int:
    """Of a program that holds a row: about 16 numbers a thread."""
    return max(1, min(8, pl.next_power_of_2(size) // 512))


def _kernel(hidden: Any, weight: Any, *rest: Any, eps: float, adds: bool, gathers: bool) -> None:
    normed = rest[-1]
    place = pl.program_id(0)
    size = hidden.shape[1]
    columns = lanes(size)

    def norm(row: jax.Array) -> None:
        stream = row_of(hidden, row, columns)
        if adds:
            stream = (stream + row_of(rest[0], row, columns)).astype(hidden.dtype).astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.sum(stream * stream) / size + eps)
        scale = plt.load(weight.at[columns], mask=columns < size, other=0.0)
        put_row(normed, place, columns, (stream * inverse).astype(normed.dtype) * scale)

    if not gathers:
        norm(place)
        return
    index, count = rest[-3:-1]
    used = place < number(count, 0)

    @pl.when(used)
    def _computed() -> None:
        norm(number(index, place))

    @pl.when(~used)
    def _spare() -> None:
        put_row(normed, place, columns, jnp.zeros(columns.shape, normed.dtype))


def rotated_heads(
    products: Float[Array, "places kv_heads group_key_value head_dim"],
    bias: Float[Array, "kv_heads group_key_value head_dim"] | None,
    index: Int[Array, " rows"] | None,
    count: Int[Array, " one"] | None,
    cos: Float[Array, "batch slots half"],
    sin: Float[Array, "batch slots half"],
    branches: int,
    norm: HeadNorm | None = None,
) -> Float[Array, "places kv_heads group_key_value head_dim"]:
    """Bias, norm and rotary of each place's queries and keys; its values get the bias alone.

    Args:
        products: for each key/value head its group of queries, its key and its value.
        bias: that is added to each place.
        index: row of each place; None where places are rows.
        count: places that are used; what stands in those behind is undefined.
        cos: float32 rotary factors of each slot.
        sin: likewise.
        branches: of each batch row.
        norm: of each query and key, where the family has one.
    """
    places, kv_heads, _, _ = products.shape
    arguments = [products, cos, sin]
    if bias is not None:
        arguments.append(bias)
    if norm is not None:
        arguments += [norm.query, norm.key]
    if index is not None:
        assert count is not None
        arguments += [index, count]
    kernel = functools.partial(
        _rotary_kernel,
        branches=branches,
        biased=bias is not None,
        eps=None if norm is None else norm.eps,
        gathers=index is not None,
    )
    shape = jax.ShapeDtypeStruct(products.shape, products.dtype)
    return launch(kernel, "rotated_heads", [shape], (places, kv_heads), *arguments, warps=1)[0]


def _rotary_kernel(
    products: Any,
    cosines: Any,
    sines: Any,
    *rest: Any,
    branches: int,
    biased: bool,
    eps: float | None,
    gathers: bool,
) -> None:
    rotated = rest[-1]
    place, head = pl.program_id(0), pl.program_id(1)
    slots, half = cosines.shape[1:]
    members, size = products.shape[2:]
    member, columns = lanes(members, least=1), jnp.arange(size, dtype=jnp.int32)
    real = jnp.broadcast_to((member < members)[:, None], (member.size, size))
    weights = rest[biased : biased + 2]  # of the norm, where there is one

    def of(index: jax.Array, like: jax.Array) -> jax.Array:
        return jnp.full_like(like, index)

    def heads_of(columns: jax.Array) -> jax.Array:
        at = (of(head, member)[:, None], member[:, None], columns[None, :])
        heads = plt.load(products.at[(of(place, member)[:, None], *at)], mask=real, other=0.0)
        if biased:
            heads = heads + plt.load(rest[0].at[at], mask=real, other=0.0)
        return heads.astype(jnp.float32)

    def normed(heads: jax.Array, columns: jax.Array) -> jax.Array:
        """As plain JAX rounds: the norm, then its weight."""
        if eps is None:
            return heads
        inverse = jax.lax.rsqrt(jnp.sum(heads * heads, axis=1, keepdims=True) / size + eps)
        query, key = (plt.load(weight.at[columns])[None, :] for weight in weights)
        weight = jnp.where((member == members - 2)[:, None], key, query)
        return ((heads * inverse).astype(products.dtype) * weight).astype(jnp.float32)

    def rotate(row: jax.Array) -> None:
        """Rotary pairs columns i and i + half: each is turned by its angle, with the other one read beside it."""
        angle = (of(row // (branches * slots), columns), of(row % slots, columns), columns % half)
        cos, sin = plt.load(cosines.at[angle]), plt.load(sines.at[angle])
        sin = jnp.where(columns < half, -sin, sin)
        others = (columns + half) % size
        straight = heads_of(columns)
        turned = normed(straight, columns) * cos[None, :] + normed(heads_of(others), others) * sin[None, :]
        value = (member == members - 1)[:, None]
        at = (of(place, member)[:, None], of(head, member)[:, None], member[:, None], columns[None, :])
        plt.store(rotated.at[at], jnp.where(value, straight, turned).astype(rotated.dtype), mask=real)

    if not gathers:
        rotate(place)
        return
    index, count = rest[-3:-1]

    @pl.when(place < number(count, 0))
    def _used() -> None:
        rotate(number(index, place))
