"""Attention of a single-token decode step, from the projected row to the mixed heads, in one launch.

A decode step at batch 1 is bound by kernel launches once its weights stream at full rate: norm, rotary, cache update,
two products and a softmax are eleven of the seventeen launches of a layer. Here they are one (two with split keys). The
cache is read up to each row's length only, however large its capacity.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.head_norm import HeadNorm
from pallas_kernels.triton.launch import LOWEST, TINY

KEY_TILE = 64
QUERY_TILE = 16
"""Rows of the smallest tensor-core product; a group's queries and its key share one tile."""


def supports(group: int, head_dim: int, dtype: DTypeLike) -> bool:
    """Whether the kernel takes the shapes: bfloat16 (Triton multiplies float32 as TF32), head_dim a power of two."""
    return jnp.dtype(dtype) == jnp.bfloat16 and group < QUERY_TILE and head_dim >= 32 and head_dim.bit_count() == 1


def split_count(programs: int, capacity: int, multiprocessors: int = 132) -> int:
    """How many programs share one row's keys: enough to fill the GPU, each with at least two tiles of a full cache."""
    return max(1, min(multiprocessors // programs, capacity // (2 * KEY_TILE)))


def decode_attention(
    projected: Float[Array, "batch kv_heads group_key_value head_dim"],
    keys: Float[Array, "batch kv_heads capacity head_dim"],
    values: Float[Array, "batch kv_heads capacity head_dim"],
    lengths: Int[Array, " batch"],
    cos: Float[Array, "batch half"],
    sin: Float[Array, "batch half"],
    scale: Float[Array, " batch"],
    norm: HeadNorm | None,
    *,
    splits: int | None = None,
    interpret: bool = False,
) -> tuple[
    Float[Array, "batch kv_heads group head_dim"],
    Float[Array, "batch kv_heads capacity head_dim"],
    Float[Array, "batch kv_heads capacity head_dim"],
]:
    """Norm and rotate each row's queries and key, append key and value to the cache, attend to everything up to there.

    Args:
        projected: for each key/value head its group of queries, then its key, then its value.
        keys: cache, overwritten in place at `lengths` where the caller donates it.
        values: likewise.
        lengths: cached tokens of each row; the new one stands at this position.
        cos: float32 rotary factors at the new position.
        sin: likewise.
        scale: float32 multiplier of each row's scores, head_dim^-0.5 times the family's query scale.
        norm: head norm of the family, if it has one.
        splits: programs that share a row's keys; chosen from the shapes by default.
        interpret: run without a GPU.

    Returns:
        mixed heads in the dtype of `projected`, and the two caches.
    """
    batch, kv_heads, group, size = projected.shape[0], projected.shape[1], projected.shape[2] - 2, projected.shape[3]
    splits = splits or split_count(batch * kv_heads, keys.shape[2])
    eps, weights = (0.0, ()) if norm is None else (norm.eps, (norm.query, norm.key))
    partial = (batch, kv_heads, splits, group)
    results = [
        jax.ShapeDtypeStruct((*partial, size), projected.dtype if splits == 1 else jnp.float32),
        jax.ShapeDtypeStruct(partial, jnp.float32),
        jax.ShapeDtypeStruct(partial, jnp.float32),
        jax.ShapeDtypeStruct(keys.shape, keys.dtype),
        jax.ShapeDtypeStruct(values.shape, values.dtype),
    ]
    mixed, peak, mass, keys, values = pl.pallas_call(
        functools.partial(_kernel, group=group, size=size, eps=eps, splits=splits),
        grid=(batch, kv_heads, splits),
        out_shape=results,
        input_output_aliases={1: 3, 2: 4},
        compiler_params=plt.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
        name="decode_attention",
    )(projected, keys, values, lengths, cos, sin, scale, *weights)
    if splits == 1:
        return mixed[:, :, 0], keys, values
    return _merge(mixed, peak, mass).astype(projected.dtype), keys, values


def _merge(
    mixed: Float[Array, "batch kv_heads splits group head_dim"],
    peak: Float[Array, "batch kv_heads splits group"],
    mass: Float[Array, "batch kv_heads splits group"],
) -> Float[Array, "batch kv_heads group head_dim"]:
    """Softmax states of all splits as one, by log-sum-exp; written out per split, so that it compiles to one launch."""
    splits = range(peak.shape[2])
    highest = functools.reduce(jnp.maximum, (peak[:, :, split] for split in splits))
    shares = [jnp.exp(peak[:, :, split] - highest) * mass[:, :, split] for split in splits]
    weighted = [share[..., None] * mixed[:, :, split] for split, share in zip(splits, shares, strict=True)]
    return functools.reduce(jnp.add, weighted) / functools.reduce(jnp.add, shares)[..., None]


def _kernel(
    projected: Any,
    keys_in: Any,
    values_in: Any,
    lengths: Any,
    cos: Any,
    sin: Any,
    scales: Any,
    *rest: Any,
    group: int,
    size: int,
    eps: float,
    splits: int,
) -> None:
    """One program: one key/value head of one row, and every `splits`-th tile of its keys."""
    *weights, mixed, peak_out, mass_out, keys_out, values_out = rest
    row, head, split = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    half = size // 2
    lower, upper = pl.ds(0, half), pl.ds(half, half)
    lanes = jnp.arange(QUERY_TILE)
    is_key = (lanes == group)[:, None]
    length = plt.load(lengths.at[row])

    # Lanes 0..group-1 are the queries, lane `group` is the new key. Rotary pairs halves, so a head is held as two
    # halves.
    def load_half(columns: jax.Array) -> jax.Array:
        index = (
            jnp.full_like(lanes, row)[:, None],
            jnp.full_like(lanes, head)[:, None],
            lanes[:, None],
            columns[None, :],
        )
        return plt.load(projected.at[index], mask=(lanes <= group)[:, None], other=0.0)

    low, high = load_half(jnp.arange(half)), load_half(jnp.arange(half) + half)
    if weights:
        square = jnp.square(low.astype(jnp.float32)).sum(1) + jnp.square(high.astype(jnp.float32)).sum(1)
        inverse = jax.lax.rsqrt(square / size + eps)[:, None]
        query_weight, key_weight = weights

        def scaled(x: jax.Array, part: Any) -> jax.Array:
            weight = jnp.where(is_key, plt.load(key_weight.at[part])[None, :], plt.load(query_weight.at[part])[None, :])
            return (x.astype(jnp.float32) * inverse).astype(x.dtype) * weight

        low, high = scaled(low, lower), scaled(high, upper)
    low32, high32 = low.astype(jnp.float32), high.astype(jnp.float32)
    c, s = plt.load(cos.at[row, lower])[None, :], plt.load(sin.at[row, lower])[None, :]
    low, high = (low32 * c - high32 * s).astype(low.dtype), (high32 * c + low32 * s).astype(low.dtype)
    key_low = jnp.sum(jnp.where(is_key, low.astype(jnp.float32), 0.0), axis=0)
    key_high = jnp.sum(jnp.where(is_key, high.astype(jnp.float32), 0.0), axis=0)
    value = plt.load(projected.at[row, head, jnp.int32(group + 1), pl.ds(0, size)])

    @pl.when(split == 0)
    def append() -> None:
        plt.store(keys_out.at[row, head, length, lower], key_low.astype(keys_out.dtype))
        plt.store(keys_out.at[row, head, length, upper], key_high.astype(keys_out.dtype))
        plt.store(values_out.at[row, head, length, pl.ds(0, size)], value)

    # The new token is the first term of split 0; tiles below stop short of it, so no program reads what another writes.
    scale = plt.load(scales.at[row])
    own = jnp.sum(low.astype(jnp.float32) * key_low + high.astype(jnp.float32) * key_high, axis=1) * scale
    leads = jnp.full_like(lanes, split) == 0
    ones = jnp.ones((QUERY_TILE,), jnp.float32)
    peak, mass = jnp.where(leads, own, LOWEST), jnp.where(leads, ones, 0.0)
    acc = mass[:, None] * value.astype(jnp.float32)[None, :]

    def add_tile(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        peak, mass, acc = carry
        begin = (split + index * splits) * KEY_TILE
        tile, valid = pl.ds(begin, KEY_TILE), begin + jnp.arange(KEY_TILE) < length
        k_low = plt.load(keys_in.at[row, head, tile, lower], mask=valid[:, None], other=0.0)
        k_high = plt.load(keys_in.at[row, head, tile, upper], mask=valid[:, None], other=0.0)
        v = plt.load(values_in.at[row, head, tile, pl.ds(0, size)], mask=valid[:, None], other=0.0)
        scores = jnp.where(valid[None, :], (plt.dot(low, k_low.T) + plt.dot(high, k_high.T)) * scale, LOWEST)
        new_peak = jnp.maximum(peak, scores.max(axis=1))
        shrink = jnp.exp(peak - new_peak)
        p = jnp.exp(scores - new_peak[:, None])
        acc = acc * shrink[:, None] + plt.dot(p.astype(v.dtype), v)
        return new_peak, mass * shrink + p.sum(axis=1), acc

    tiles = pl.cdiv(length, KEY_TILE)
    peak, mass, acc = jax.lax.fori_loop(0, pl.cdiv(tiles - split, splits), add_tile, (peak, mass, acc))
    place = (jnp.full_like(lanes, row), jnp.full_like(lanes, head), jnp.full_like(lanes, split), lanes)
    queries = lanes < group
    plt.store(peak_out.at[place], peak, mask=queries)
    plt.store(mass_out.at[place], mass, mask=queries)
    wide = (*(axis[:, None] for axis in place), jnp.arange(size)[None, :])
    acc = acc / jnp.maximum(mass, TINY)[:, None]
    plt.store(mixed.at[wide], acc.astype(mixed.dtype), mask=queries[:, None])
