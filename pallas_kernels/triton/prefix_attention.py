"""Attention to the cache, once for each compact place, with split keys (family 4)."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float, Int

from pallas_kernels.triton.attention import Tiles
from pallas_kernels.triton.launch import launch, number
from pallas_kernels.triton.softmax import LOG2_E, State, nothing, with_keys

PROCESSORS = 132
"""Of an H100 or H200. A program of `TILES` takes a whole one, so that one more would wait for all others."""
MOST_SPLITS = 8
"""Whoever merges the parts has a read of its own for each."""
TILES = Tiles(128, keys=64, warps=8, stages=3)
LONG = 1024
"""Cached places from which on two launches are faster than one, where the first one has less to do."""


def in_two_launches(
    rotated: Float[Array, "places kv_heads group_key_value head_dim"], capacity: int, *, gathers: bool
) -> bool:
    """Whether the cache is attended to before each row's own branch is, and not with it: where the cache is long, and
    that is done for fewer rows or by more programs.
    """
    return capacity > LONG and (gathers or splits_of(rotated, capacity) > 1)


def splits_of(
    rotated: Float[Array, "places kv_heads group_key_value head_dim"], capacity: int, tiles: Tiles = TILES
) -> int:
    """Into how many parts a cache is split, so that programs fill the GPU once."""
    places, kv_heads, heads, _ = rotated.shape
    programs = pl.cdiv(places, _places_of(tiles, heads)) * kv_heads
    return max(1, min(MOST_SPLITS, pl.cdiv(capacity, tiles.keys), PROCESSORS // programs))


def _places_of(tiles: Tiles, heads: int) -> int:
    """Places of a program, each with its group of queries padded to a power of two."""
    return tiles.queries // pl.next_power_of_2(heads - 2)


def prefix_attention(
    rotated: Float[Array, "places kv_heads group_key_value head_dim"],
    index: Int[Array, " rows"] | None,
    count: Int[Array, " one"] | None,
    keys: Float[Array, "batch kv_heads capacity head_dim"],
    values: Float[Array, "batch kv_heads capacity head_dim"],
    lengths: Int[Array, " batch"],
    starts: Int[Array, " batch"],
    scale: Float[Array, "batch slots"],
    branches: int,
    *,
    tiles: Tiles = TILES,
    splits: int | None = None,
) -> State:
    """What each place's queries make of the cached tokens, in parts, each of which holds every so manieth tile of keys.

    Args:
        rotated: for each compact place and key/value head its group of queries, then its key, then its value.
        index: row of each place; None where places are rows.
        count: places that are used; what is found for those behind is undefined.
        keys: cache.
        values: likewise.
        lengths: cached tokens that are seen, but for those that the branches take the place of.
        starts: first cached place that they take.
        scale: float32 multiplier of each slot's scores.
        branches: of each batch row.
        tiles: how the launch is cut.
        splits: of the keys; by default as many as fill the GPU.

    Returns:
        a state of (splits, places, kv_heads, group) queries.
    """
    places, kv_heads, heads, size = rotated.shape
    group = heads - 2
    splits = splits or splits_of(rotated, keys.shape[2], tiles)
    tile = _places_of(tiles, heads)
    arguments = [rotated, keys, values, lengths, starts, scale]
    if index is not None:
        assert count is not None
        arguments += [index, count]
    kernel = functools.partial(
        _kernel, branches=branches, tile=tile, key_tile=tiles.keys, splits=splits, gathers=index is not None
    )
    of_queries = jax.ShapeDtypeStruct((splits, places, kv_heads, group), jnp.float32)
    found = launch(
        kernel,
        "prefix_attention",
        [of_queries, of_queries, jax.ShapeDtypeStruct((*of_queries.shape, size), jnp.float32)],
        (pl.cdiv(places, tile), kv_heads, splits),
        *arguments,
        warps=tiles.warps,
        stages=tiles.stages,
    )
    return State(*found)


def _kernel(
    rotated: Any,
    keys: Any,
    values: Any,
    lengths: Any,
    starts: Any,
    scales: Any,
    *rest: Any,
    branches: int,
    tile: int,
    key_tile: int,
    splits: int,
    gathers: bool,
) -> None:
    peaks, masses, accs = rest[-3:]
    part, head, split = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    places, _, heads, size = rotated.shape
    slots, group = scales.shape[1], heads - 2
    used = number(rest[1], 0) if gathers else places
    columns = jnp.arange(size, dtype=jnp.int32)

    def of(index: jax.Array | int, like: jax.Array) -> jax.Array:
        return jnp.full_like(like, index)

    @pl.when(part * tile < used)
    def _run() -> None:
        padded = pl.next_power_of_2(group)
        lane = jnp.arange(tile * padded, dtype=jnp.int32)
        place, member = part * tile + lane // padded, lane % padded
        real = (place < jnp.minimum(used, places)) & (member < group)
        at = (place[:, None], of(head, place)[:, None], member[:, None], columns[None, :])
        queries = plt.load(rotated.at[at], mask=real[:, None], other=0.0)
        row = plt.load(rest[0].at[place], mask=real, other=0) if gathers else place
        text = row // (branches * slots)
        scale = plt.load(scales.at[text, row % slots], mask=real, other=0.0)[:, None] * LOG2_E

        def with_text(index: jax.Array, state: State) -> State:
            """With the tiles of a batch row that fall to this part."""
            length, begin = number(lengths, index), number(starts, index)
            mine = (text == index)[:, None]

            def with_tile(count: jax.Array, state: State) -> State:
                token = (count * splits + split) * key_tile + jnp.arange(key_tile, dtype=jnp.int32)
                seen = (token < length) & ((token < begin) | (token >= begin + slots))
                at = (of(index, token)[:, None], of(head, token)[:, None], token[:, None], columns[None, :])
                k, v = (plt.load(array.at[at], mask=seen[:, None], other=0.0) for array in (keys, values))
                return with_keys(state, queries, scale, k, v, seen[None, :] & mine)

            return jax.lax.fori_loop(0, pl.cdiv(pl.cdiv(length, key_tile) - split, splits), with_tile, state)

        # Places are in the order of rows, so that those of a tile are of neighbouring batch rows.
        first, last = jnp.min(jnp.where(real, text, lengths.shape[0])), jnp.max(jnp.where(real, text, 0))
        state = jax.lax.fori_loop(first, last + 1, with_text, nothing(lane.size, size))
        where = (of(split, place), place, of(head, place), member)
        plt.store(peaks.at[where], state.peak, mask=real)
        plt.store(masses.at[where], state.mass, mask=real)
        wide = (*(axis[:, None] for axis in where), columns[None, :])
        plt.store(accs.at[wide], state.acc, mask=real[:, None])
