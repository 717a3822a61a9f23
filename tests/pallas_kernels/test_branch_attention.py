"""Attention of branches, in parts and by correction, against a softmax over all of each row's keys in float64."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import folded_oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.typing import DTypeLike
from plain_attention import PlainAttention

from pallas_kernels.attention import SoftmaxState, block_state, merge, mixed_values, prefix_state
from pallas_kernels.correction import Correction, correct_state
from pallas_kernels.rows import BY_RESIDUAL, FORCED, compact, plan_rows
from specdiff_jax.model import branch_attention
from specdiff_jax.model.branch_attention import BranchRows, attend_branches
from specdiff_jax.model.rotary import RotaryTable

EXACT = 1e-6
BRANCHES, SLOTS, KV_HEADS, HEAD_DIM, CAPACITY = 5, 4, 2, 16, 12
LENGTHS = (9, 0, 12)
GARBAGE = 1e4
each_group = pytest.mark.parametrize("group", [1, 4, 6, 7])


class Rows(NamedTuple):
    """What the rows of several branches read: own results where a row is computed, else those of its source."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    cached_keys: np.ndarray
    cached_values: np.ndarray
    lengths: np.ndarray
    parents: np.ndarray
    recomputed: np.ndarray
    source: np.ndarray
    seen: np.ndarray


@cache
def random_rows(group: int, adversary: bool = False) -> Rows:
    """Random forests, one a batch row, in which about half of the rows are folded; those of the last are causal.

    The adversary is a key of branch 0 that gets nearly all of every row's attention. All other branches hold something
    else in its slot.
    """
    generator = np.random.default_rng(group)
    batch = len(LENGTHS)

    def draw(*shape: int) -> np.ndarray:
        return generator.normal(size=shape).astype(np.float32)

    queries, keys, values = (
        draw(batch, BRANCHES, SLOTS, *heads, HEAD_DIM) for heads in ((KV_HEADS, group), (KV_HEADS,), (KV_HEADS,))
    )
    recomputed = generator.random((batch, BRANCHES, SLOTS)) < 0.4
    recomputed[:, 0] = True
    if adversary:
        queries[..., 0] = 4
        keys[:, 0, 0] = 14 * np.eye(HEAD_DIM)[0]  # a score of 14
        recomputed[:, 1:, 0] = True
    parents = np.array([folded_oracle.random_parents(generator, BRANCHES) for _ in LENGTHS])
    source = np.array([folded_oracle.plan(*forest).source for forest in zip(recomputed, parents, strict=True)])
    seen = np.ones((batch, BRANCHES, SLOTS, SLOTS), bool)
    seen[-1] = np.tri(SLOTS, dtype=bool)
    queries, keys, values = (
        table[np.arange(batch)[:, None, None], source, np.arange(SLOTS)] for table in (queries, keys, values)
    )
    cached = (draw(batch, KV_HEADS, CAPACITY, HEAD_DIM) for _ in range(2))
    return Rows(queries, keys, values, *cached, np.array(LENGTHS), parents, recomputed, source, seen)


def keys_and_values(rows: Rows, row: int, branch: int, slot: int) -> tuple[np.ndarray, np.ndarray]:
    """All that a row sees with the keys and values of some branch, (keys, kv_heads, head_dim)."""
    length, seen = rows.lengths[row], rows.seen[row, branch, slot]
    pairs = (rows.cached_keys, rows.keys), (rows.cached_values, rows.values)
    keys, values = (
        np.concatenate([before[row, :, :length].swapaxes(0, 1), own[row, branch, seen]]).astype(np.float64)
        for before, own in pairs
    )
    return keys, values


@cache
def truth(group: int, adversary: bool = False) -> np.ndarray:
    """What every row mixes."""
    rows = random_rows(group, adversary)
    mixed = np.zeros(rows.queries.shape)
    for row, branch, slot in np.ndindex(rows.source.shape):
        keys, values = keys_and_values(rows, row, branch, slot)
        queries = rows.queries[row, branch, slot].reshape(-1, HEAD_DIM).astype(np.float64)
        mixed[row, branch, slot] = folded_oracle.attend(queries, keys, values).reshape(KV_HEADS, group, HEAD_DIM)
    return mixed


def true_surviving(rows: Rows) -> np.ndarray:
    """The share of each source's attention that is on what the row's own branch reads, too."""
    surviving = np.zeros(rows.queries.shape[:-1])
    for row, branch, slot in np.ndindex(rows.source.shape):
        source = rows.source[row, branch, slot]
        keys, _ = keys_and_values(rows, row, source, slot)
        kept = (rows.source[row, branch] == rows.source[row, source])[rows.seen[row, branch, slot]]
        kept = np.concatenate([np.ones(len(keys) - len(kept), bool), kept])
        for kv_head, of_group in enumerate(rows.queries[row, branch, slot].astype(np.float64)):
            for head, query in enumerate(of_group):
                powers = np.exp(keys[:, kv_head] @ query / np.sqrt(HEAD_DIM))
                surviving[row, branch, slot, kv_head, head] = powers[kept].sum() / powers.sum()
    return surviving


def split_state(rows: Rows) -> SoftmaxState:
    """The cache's part and the block's, merged."""
    batch = len(rows.lengths)
    flat = rows.queries.reshape(batch, -1, *rows.queries.shape[3:])
    before = prefix_state(flat, rows.cached_keys, rows.cached_values, rows.lengths)
    before = SoftmaxState(*(part.reshape(batch, BRANCHES, SLOTS, *part.shape[2:]) for part in before))
    return merge(before, block_state(rows.queries, rows.keys, rows.values, rows.seen))


@jax.jit
def split(rows: Rows) -> jax.Array:
    return mixed_values(split_state(rows))


@jax.jit
def corrected(rows: Rows) -> tuple[jax.Array, Correction]:
    """From the states of the sources, without a guard."""
    ancestor = SoftmaxState(
        *(jax.vmap(lambda of, at: of[at, jnp.arange(SLOTS)])(part, rows.source) for part in split_state(rows))
    )
    correction = correct_state(ancestor, rows.queries, rows.keys, rows.values, rows.source, rows.seen)
    return mixed_values(correction.state), correction


def worst(ours: jax.Array, truth: np.ndarray) -> np.ndarray:
    """Of every head the largest error; the values that it mixes are of unit size."""
    return np.abs(np.asarray(ours, np.float64) - truth).max(axis=-1)


@pytest.mark.parametrize("adversary", [False, True], ids=["random", "one key has it all"])
@each_group
def test_parts_make_the_whole(group: int, adversary: bool) -> None:
    """Prefixes of some tokens, of none and of all that the cache holds; blocks seen whole and causally."""
    rows = random_rows(group, adversary)
    assert worst(split(rows), truth(group, adversary)).max() < EXACT


def test_a_prefix_of_no_tokens() -> None:
    """Its state is that of no key, which changes no other."""
    rows = random_rows(4)
    nothing = jax.jit(prefix_state)(rows.queries[:, 0], rows.cached_keys, rows.cached_values, np.zeros(3, int))
    assert np.isneginf(nothing.max).all()
    assert not np.asarray(nothing.sum).any()
    assert not np.asarray(nothing.acc).any()
    some = nothing._replace(max=nothing.sum - 3, sum=nothing.sum + 2, acc=nothing.acc + 5)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(merge)(nothing, some), some)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(merge)(some, nothing), some)


def test_a_gap_in_the_prefix() -> None:
    """Cached tokens whose place the branches take are not seen."""
    rows = random_rows(4)
    row = int(np.argmax(rows.lengths))
    length = int(rows.lengths[row])
    gaps = np.tile([[1, length - 1]], (len(rows.lengths), 1))
    flat = rows.queries.reshape(len(rows.lengths), -1, *rows.queries.shape[3:])
    state = jax.jit(prefix_state)(flat, rows.cached_keys, rows.cached_values, rows.lengths, gaps)
    seen = [0, length - 1]
    keys, values = (table[row, :, seen].astype(np.float64) for table in (rows.cached_keys, rows.cached_values))
    expected = [folded_oracle.attend(of.reshape(-1, HEAD_DIM).astype(np.float64), keys, values) for of in flat[row]]
    found = np.asarray(mixed_values(state))[row].reshape(np.shape(expected))
    np.testing.assert_allclose(found, expected, atol=EXACT)


@pytest.mark.parametrize("apart", [-200.0, -3.0, 0.0, 3.0, 200.0])
def test_states_merge_at_any_distance(apart: float) -> None:
    """The scores of one are so much higher; a difference of 200 is more than float32's range of powers."""
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(2, 6)) + np.array([[0.0], [apart]])
    values = generator.normal(size=(2, 6, HEAD_DIM))

    def state(scores: np.ndarray, values: np.ndarray) -> SoftmaxState:
        powers = np.exp(scores - scores.max())
        parts = (scores.max(), powers.sum(), powers @ values)
        return SoftmaxState(*(jnp.asarray(part, jnp.float32)[None, None] for part in parts))

    both = jax.jit(merge)(*map(state, scores, values))
    powers = np.exp(scores - scores.max())
    np.testing.assert_allclose(both.max[0, 0], scores.max(), rtol=EXACT)
    np.testing.assert_allclose(both.sum[0, 0], powers.sum(), rtol=EXACT)
    mixed = np.einsum("pk,pkd->d", powers, values) / powers.sum()
    assert worst(mixed_values(both)[0, 0], mixed) < EXACT


def test_what_lies_past_the_length_is_not_seen() -> None:
    """Any keys, and any finite values: they are multiplied by 0, which NaN would survive."""
    rows = random_rows(4)
    behind = (np.arange(CAPACITY) >= rows.lengths[:, None])[:, None, :, None]
    spoilt = rows._replace(
        cached_keys=np.where(behind, np.float32(np.nan), rows.cached_keys),
        cached_values=np.where(behind, np.float32(GARBAGE), rows.cached_values),
    )
    np.testing.assert_array_equal(split(spoilt), split(rows))


def test_bfloat16_of_several_texts() -> None:
    """Sums are float32, so that only the roundings of the arguments and of the softmax count."""
    rows = random_rows(4)

    def rounded(dtype: DTypeLike) -> Rows:
        return Rows(*(part.astype(jnp.bfloat16).astype(dtype) if part.dtype == np.float32 else part for part in rows))

    ours = split(rounded(jnp.bfloat16))
    assert ours.dtype == jnp.float32
    np.testing.assert_allclose(ours, split(rounded(jnp.float32)), atol=0.03)


@each_group
def test_corrections(group: int) -> None:
    """Exact where most of a state survives; elsewhere subtraction loses in proportion to what it removes."""
    rows = random_rows(group)
    mixed, correction = corrected(rows)
    surviving, error = true_surviving(rows), worst(mixed, truth(group))
    np.testing.assert_allclose(correction.surviving, surviving, atol=EXACT)
    assert ((surviving >= 0.5) & (surviving < 0.999)).any()
    assert (surviving < 0.5).any()
    assert error[surviving >= 0.5].max() < EXACT
    assert (error * surviving).max() < EXACT


def test_a_row_that_is_its_own_source_is_left_as_it_is() -> None:
    rows = random_rows(4)
    mixed, correction = corrected(rows)
    np.testing.assert_array_equal(mixed[rows.recomputed], split(rows)[rows.recomputed])
    assert (np.asarray(correction.surviving)[rows.recomputed] == 1).all()


def by_correction(rows: Rows) -> tuple[jax.Array, jax.Array]:
    """What every row mixes with the guard, and the least that survives of its source's state in any head."""
    batch, group = len(LENGTHS), rows.queries.shape[-2]

    @jax.jit
    def run(rows: Rows) -> tuple[jax.Array, jax.Array]:
        recomputed = rows.recomputed.reshape(batch, -1)
        plan = plan_rows(
            jnp.zeros(recomputed.shape),
            jnp.where(recomputed, FORCED, BY_RESIDUAL),
            jnp.zeros(()),
            (rows.parents[..., None] * SLOTS + jnp.arange(SLOTS)).reshape(batch, -1),
            generations=BRANCHES - 1,
        )
        tables = jnp.concatenate([rows.queries, rows.keys[..., None, :], rows.values[..., None, :]], axis=-2)
        tables = jnp.where(recomputed[..., None], tables.reshape(*recomputed.shape, -1), jnp.nan)
        no_angle = RotaryTable(jnp.ones((batch, SLOTS, HEAD_DIM // 2)), jnp.zeros((batch, SLOTS, HEAD_DIM // 2)), None)
        shared = BranchRows(
            rotary=no_angle,
            scale=jnp.full((batch, SLOTS), HEAD_DIM**-0.5),
            lengths=rows.lengths,
            starts=None,
            visible=jnp.sum(rows.seen, axis=-1),
            implementation="xla",
        )
        mixed = attend_branches(
            PlainAttention(KV_HEADS, group, HEAD_DIM),
            compact(tables, plan.index),
            (rows.cached_keys, rows.cached_values),
            shared,
            plan,
            correct=True,
        )
        return mixed.heads, mixed.surviving

    return run(rows)


def test_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a removed key had nearly all of the attention, what is left of the state is rounding error."""
    rows, exact = random_rows(4, adversary=True), truth(4, adversary=True)
    fallen = ~rows.recomputed & (rows.source == 0)
    guarded, surviving = by_correction(rows)
    monkeypatch.setattr(branch_attention, "GUARD", -np.inf)
    unguarded, _ = by_correction(rows)

    assert fallen.any()
    assert np.asarray(surviving)[fallen].max() < 1e-4
    assert worst(guarded, exact)[fallen].max() < EXACT
    assert worst(unguarded, exact)[fallen].max() > 1000 * EXACT
