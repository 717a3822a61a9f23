"""Attention of several branches: the row's own branch, and the cache or what was found in it before (family 4)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.triton.launch import LOWEST, lanes, launch, number
from pallas_kernels.triton.softmax import LOG2_E, State, merged, nothing, with_keys
from pallas_kernels.tuned_data import AttentionShape, tiles_for

LONGEST_BRANCH = 128
"""Slots whose keys and values a program holds at once."""
PROGRAMS = 64
"""Tiles of queries are made smaller until there are as many: on an H200 fewer large tiles lose to that many small ones,
and more small ones to that many large ones.
"""


@dataclass(frozen=True)
class Tiles:
    """How a launch is cut.

    Attributes:
        queries: of a program, the padding of groups included.
        keys: of the cache that a program reads at a time.
        warps: of a program.
        stages: reads that are under way at a time.
    """

    queries: int
    keys: int = 64
    warps: int = 4
    stages: int = 3


MERGING = Tiles(16, stages=1)
"""Of launches that do not read the cache: many small programs, which wait for little."""


def supports(group: int, head_dim: int, dtype: DTypeLike) -> bool:
    """Whether the kernel takes the shapes: bfloat16 (Triton multiplies float32 as TF32), head_dim 32, 64 or 128."""
    return jnp.dtype(dtype) == jnp.bfloat16 and group <= 16 and head_dim in (32, 64, 128)


def default_tiles(branches: int, kv_heads: int, slots: int, group: int) -> Tiles:
    """As many queries a program as leave enough programs to fill the GPU: the best of 14 that were timed on an H200."""
    group = pl.next_power_of_2(group)
    for tiles in (Tiles(128, warps=8), Tiles(64), Tiles(32)):
        if tiles.queries >= group and branches * kv_heads * pl.cdiv(slots * group, tiles.queries) >= PROGRAMS:
            return tiles
    return Tiles(max(16, group), keys=128)


def branch_attention(
    rotated: Float[Array, "places kv_heads group_key_value head_dim"],
    slot: Int[Array, "batch branches slots"] | None,
    keys: Float[Array, "batch kv_heads capacity head_dim"],
    values: Float[Array, "batch kv_heads capacity head_dim"],
    lengths: Int[Array, " batch"],
    starts: Int[Array, " batch"],
    scale: Float[Array, "batch slots"],
    visible: Int[Array, "batch branches slots"],
    before: State | None = None,
    *,
    append: bool = False,
    tiles: Tiles | None = None,
) -> tuple[Float[Array, "batch branches slots kv_heads group head_dim"], Array, Array]:
    """Every row attends to the cache and to its own branch, with the query that it reads.

    A program holds some slots of one branch, with all queries that share a key/value head.

    Args:
        rotated: for each compact place and key/value head its group of queries, then its key, then its value.
        slot: compact place that each row reads; None where places are rows.
        keys: cache.
        values: likewise.
        lengths: cached tokens that are seen, but for those that the branches take the place of.
        starts: first cached place that they take.
        scale: float32 multiplier of each slot's scores.
        visible: how many slots of its own branch each row sees, at least one.
        before: what each place's queries found in the cache, in parts (`prefix_attention`); without it the cache is
            read here.
        append: whether the only branch is written to the cache, from `starts` on.
        tiles: how the launch is cut.

    Returns:
        mixed heads, and each branch's rotated keys and its values (batch, kv_heads, branches, slots, head_dim), or the
        caches that they were appended to.
    """
    batch, branches, slots = visible.shape
    _, kv_heads, heads, size = rotated.shape
    group = heads - 2
    if tiles is None:
        shape = AttentionShape(batch * branches, kv_heads, slots, group, size)
        tiles = tiles_for(shape, default_tiles(*shape[:4])) if before is None else MERGING
    tile = tiles.queries // pl.next_power_of_2(group)
    arguments = [rotated, keys, values, lengths, starts, scale, visible]
    if slot is not None:
        arguments.append(slot)
    if before is not None:
        arguments += before
    of_branches = (batch, kv_heads, branches, slots, size)
    written = jax.ShapeDtypeStruct(keys.shape if append else of_branches, keys.dtype)
    kernel = functools.partial(
        _kernel,
        branches=branches,
        slots=slots,
        group=group,
        tile=tile,
        key_tile=tiles.keys,
        reads=slot is not None,
        begun=before is not None,
        append=append,
    )
    mixed, read_keys, read_values = launch(
        kernel,
        "branch_attention",
        [jax.ShapeDtypeStruct((batch, branches, slots, kv_heads, group, size), keys.dtype), written, written],
        (batch * branches, kv_heads, pl.cdiv(slots, tile)),
        *arguments,
        warps=tiles.warps,
        stages=tiles.stages,
        aliases={1: 1, 2: 2} if append else None,
    )
    return mixed, read_keys, read_values


def _kernel(
    rotated: Any,
    keys: Any,
    values: Any,
    lengths: Any,
    starts: Any,
    scales: Any,
    visible: Any,
    *rest: Any,
    branches: int,
    slots: int,
    group: int,
    tile: int,
    key_tile: int,
    reads: bool,
    begun: bool,
    append: bool,
) -> None:
    mixed, read_keys, read_values = rest[-3:]
    which, head, part = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    row, branch = which // branches, which % branches
    size = rotated.shape[-1]
    columns = jnp.arange(size, dtype=jnp.int32)

    def of(index: jax.Array | int, like: jax.Array) -> jax.Array:
        return jnp.full_like(like, index)

    def place_of(slot: jax.Array, real: jax.Array) -> jax.Array:
        if not reads:
            return which * slots + slot
        place = plt.load(rest[0].at[of(row, slot), of(branch, slot), slot], mask=real, other=0)
        return jnp.minimum(place, rotated.shape[0] - 1)  # where places are too few, what is read is of no use

    def heads_of(place: jax.Array, member: jax.Array, real: jax.Array) -> jax.Array:
        at = (place[:, None], of(head, place)[:, None], member[:, None], columns[None, :])
        return plt.load(rotated.at[at], mask=real[:, None], other=0.0)

    # Queries: for each slot of the tile its group, padded to a power of two.
    padded = pl.next_power_of_2(group)
    lane = jnp.arange(tile * padded, dtype=jnp.int32)
    slot, member = part * tile + lane // padded, lane % padded
    real = (slot < slots) & (member < group)
    source = place_of(slot, real)
    queries = heads_of(source, member, real)
    scale = plt.load(scales.at[of(row, slot), slot], mask=real, other=0.0)[:, None] * LOG2_E

    # The row's own branch comes first: it is never empty, so that from here on every row has a finite peak.
    key = lanes(slots)
    there = key < slots
    place = place_of(key, there)
    k, v = heads_of(place, of(group, key), there), heads_of(place, of(group + 1, key), there)
    shown = plt.load(visible.at[of(row, slot), of(branch, slot), slot], mask=real, other=1)
    state = with_keys(nothing(lane.size, size), queries, scale, k, v, key[None, :] < shown[:, None])
    length, begin = number(lengths, row), number(starts, row)

    def add_cached(index: jax.Array, state: State) -> State:
        place = index * key_tile + jnp.arange(key_tile, dtype=jnp.int32)
        seen = (place < length) & ((place < begin) | (place >= begin + slots))
        at = (of(row, place)[:, None], of(head, place)[:, None], place[:, None], columns[None, :])
        k, v = (plt.load(array.at[at], mask=seen[:, None], other=0.0) for array in (keys, values))
        return with_keys(state, queries, scale, k, v, seen[None, :])

    def found_before(split: int) -> State:
        peaks, masses, accs = rest[int(reads) : int(reads) + 3]
        at = (of(split, source), source, of(head, source), member)
        wide = (*(axis[:, None] for axis in at), columns[None, :])
        return State(
            plt.load(peaks.at[at], mask=real, other=LOWEST),
            plt.load(masses.at[at], mask=real, other=0.0),
            plt.load(accs.at[wide], mask=real[:, None], other=0.0),
        )

    if begun:
        parts = map(found_before, range(rest[int(reads)].shape[0]))
        state = merged(state, functools.reduce(merged, parts))
    else:
        state = jax.lax.fori_loop(0, pl.cdiv(length, key_tile), add_cached, state)
    at = (of(row, slot), of(branch, slot), slot, of(head, slot), member)
    wide = (*(axis[:, None] for axis in at), columns[None, :])
    plt.store(mixed.at[wide], (state.acc / state.mass[:, None]).astype(mixed.dtype), mask=real[:, None])

    @pl.when(part == 0)
    def write() -> None:
        first, last = ((row, head), key + begin) if append else ((row, head, branch), key)
        at = (*(of(index, key)[:, None] for index in first), last[:, None], columns[None, :])
        plt.store(read_keys.at[at], k, mask=there[:, None])
        plt.store(read_values.at[at], v, mask=there[:, None])
