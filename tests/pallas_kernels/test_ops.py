"""Every op of a folded layer, in every implementation, against its float32 reference.

On a CPU kernels are interpreted, at small sizes and mostly in float32; on a GPU all implementations run at full size in
bfloat16. What an op must not read is NaN: compact places behind the last one, rows that are not computed, and cached
tokens that nobody sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, get_args
from unittest import mock

import folded_oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain_attention import PlainAttention

from pallas_kernels import reference
from pallas_kernels.attention import SoftmaxState, block_state, merge, prefix_state
from pallas_kernels.correction import Correction, correct_state
from pallas_kernels.feed_forward import add_through
from pallas_kernels.head_norm import HeadNorm
from pallas_kernels.implementation import Implementation
from pallas_kernels.likeliest import likeliest
from pallas_kernels.projection import normed_rows
from pallas_kernels.rows import BY_RESIDUAL, FORCED, IDLE, RowPlan, plan_rows
from pallas_kernels.triton import launch
from pallas_kernels.triton.attention import Tiles
from pallas_kernels.triton.attention import branch_attention as in_one_launch
from pallas_kernels.triton.likeliest import PART
from pallas_kernels.triton.projection import rotated_heads
from specdiff_jax.model import branch_attention
from specdiff_jax.model.branch_attention import BranchRows
from specdiff_jax.model.rotary import RotaryTable

EPS = 0.1
GARBAGE = 1e4


@dataclass(frozen=True)
class Sizes:
    """Of a folded layer, by default of NLD-3B with nine branches behind a text of 512 tokens.

    Attributes:
        batch: texts.
        branches: of each.
        slots: of a block.
        hidden: numbers of a row.
        kv_heads: key/value heads.
        group: queries of each.
        head_dim: numbers of a head.
        cached: tokens of the longest text.
        bias: whether queries, keys and values have one.
        dtype: of all activations.
    """

    batch: int = 1
    branches: int = 9
    slots: int = 32
    hidden: int = 3072
    kv_heads: int = 8
    group: int = 4
    head_dim: int = 128
    cached: int = 512
    bias: bool = False
    dtype: str = "bfloat16"

    @property
    def rows(self) -> int:
        """Of each text."""
        return self.branches * self.slots

    def groups(self, implementation: Implementation) -> int:
        """That the rows of all texts stand in."""
        return 1 if implementation == "triton" else self.batch

    def __str__(self) -> str:
        shapes = (self.batch, self.branches, self.slots), (self.hidden,), (self.kv_heads, self.group, self.head_dim)
        return " ".join(["x".join(map(str, shape)) for shape in shapes] + [self.dtype])


COUNTS = (32, 33, 64, 134, 287, 288)
SMALL = Sizes(hidden=40, kv_heads=1, head_dim=16, cached=70, dtype="float32")
BFLOAT16 = replace(SMALL, dtype="bfloat16")
ODD = [
    replace(SMALL, batch=3, branches=5, slots=8, hidden=200, kv_heads=2, group=1, bias=True),
    replace(SMALL, batch=3, branches=4, slots=4, hidden=72, kv_heads=2, group=6, head_dim=32, cached=130),
    replace(SMALL, batch=3, branches=3, slots=4, hidden=24, kv_heads=2, group=7),
    replace(SMALL, branches=1, slots=32, hidden=96, group=8),
]
FULL = [Sizes(), Sizes(group=6), Sizes(group=7, bias=True)]


def each(small: list[Sizes], full: list[Sizes], slow: Sequence[Sizes] = ()) -> pytest.MarkDecorator:
    """Sizes with numbers of computed rows: every one of interest at the first of the small sizes and at full size."""

    def third(sizes: Sizes) -> int:
        return min(sizes.slots + sizes.rows // 3, sizes.rows)

    cases = [(sizes, count) for sizes in small[:1] for count in COUNTS]
    cases += [(sizes, third(sizes)) for sizes in small[1:]]
    seldom = [pytest.param(sizes, third(sizes), marks=pytest.mark.slow) for sizes in slow]
    on_gpu = [pytest.param(sizes, count, marks=pytest.mark.gpu) for sizes in full for count in COUNTS]
    return pytest.mark.parametrize(("sizes", "count"), [*cases, *seldom, *on_gpu], ids=str)


def each_dense(small: list[Sizes], full: list[Sizes]) -> pytest.MarkDecorator:
    on_gpu = [pytest.param(sizes, marks=pytest.mark.gpu) for sizes in full]
    return pytest.mark.parametrize("sizes", [*small, *on_gpu], ids=str)


each_implementation = pytest.mark.parametrize("implementation", get_args(Implementation))


@pytest.fixture(autouse=True)
def interpret_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "INTERPRET", jax.default_backend() != "gpu")


@dataclass(frozen=True)
class Forests:
    """Which rows of each text are computed and each row's parent among them, (batch, rows)."""

    recomputed: np.ndarray
    parents: np.ndarray

    def grouped(self, groups: int) -> tuple[np.ndarray, np.ndarray]:
        """Both, with rows numbered through each group."""
        batch, rows = self.recomputed.shape
        first = np.arange(batch)[:, None] % (batch // groups) * rows
        return self.recomputed.reshape(groups, -1), (self.parents + first).reshape(groups, -1)

    def plan(self, groups: int) -> RowPlan:
        recomputed, parents = self.grouped(groups)
        rules = np.where(recomputed, FORCED, IDLE)
        plan = true_plan(np.zeros(rules.shape, np.float32), rules, np.float32(0), parents)
        return jax.tree.map(np.asarray, plan)


def random_forests(sizes: Sizes, count: int) -> Forests:
    """The last text computes exactly `count` rows, every other one row more than the next, as far as it has them."""
    generator = np.random.default_rng(count)
    recomputed = np.zeros((sizes.batch, sizes.rows), bool)
    recomputed[:, : sizes.slots] = True
    parents = np.zeros((sizes.batch, sizes.branches, sizes.slots), int)
    for text in range(sizes.batch):
        others = generator.permutation(np.arange(sizes.slots, sizes.rows))
        recomputed[text, others[: count + sizes.batch - 1 - text - sizes.slots]] = True
        branches = folded_oracle.random_parents(generator, sizes.branches)
        parents[text] = branches[:, None] * sizes.slots + np.arange(sizes.slots)
    return Forests(recomputed, parents.reshape(sizes.batch, -1))


def draw(sizes: Sizes, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(jnp.dtype(sizes.dtype))


def with_nan(rows: np.ndarray, where: np.ndarray) -> np.ndarray:
    poisoned = rows.copy()
    poisoned[where] = np.nan
    return poisoned


def places_of(sizes: Sizes, plan: RowPlan) -> int:
    """As many as there are rows, or where that is cheap to compile as are computed."""
    return int(plan.count.max()) if sizes in ODD else plan.index.shape[1]


def in_places(sizes: Sizes, rows: np.ndarray, plan: RowPlan) -> tuple[np.ndarray, np.ndarray]:
    """The computed rows side by side; and the same with NaN in places that hold none."""
    index = plan.index[:, : places_of(sizes, plan)]
    table = np.array([of[at] for of, at in zip(rows, index, strict=True)])
    return table, with_nan(table, np.arange(index.shape[1]) >= plan.count[:, None])


def assert_agrees(sizes: Sizes, found: jax.Array, expected: jax.Array) -> None:
    ours, truth = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert np.isfinite(ours).all()
    if sizes.dtype == "float32":
        np.testing.assert_allclose(ours, truth, atol=1e-5, rtol=1e-5)
    else:
        assert np.linalg.norm(ours - truth) < 5e-3 * np.linalg.norm(truth)


planned = jax.jit(plan_rows, static_argnames=("generations", "implementation"))
true_plan = jax.jit(reference.plan_rows)
normed = jax.jit(normed_rows, static_argnames=("eps", "places", "implementation"))
true_normed = jax.jit(reference.normed_rows, static_argnames=("eps", "places"))
added = jax.jit(add_through, static_argnames="implementation")
true_added = jax.jit(reference.add_through)
found_likeliest = jax.jit(likeliest, static_argnames=("banned", "ranks", "implementation"))
true_likeliest = jax.jit(reference.likeliest, static_argnums=(1, 2))


class Texts(NamedTuple):
    """What attention reads beside the rows.

    Attributes:
        keys: of the cached tokens.
        values: likewise.
        lengths: seen cached tokens.
        starts: first cached place that the branches take.
        cos: of every slot.
        sin: likewise.
        scale: of every slot's scores.
        visible: how many slots of its own branch each row sees.
    """

    keys: np.ndarray
    values: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray
    cos: np.ndarray
    sin: np.ndarray
    scale: np.ndarray
    visible: np.ndarray

    def spoilt(self, values: float = np.nan) -> Texts:
        """With NaN in cached keys that nobody sees, and something in their values."""
        place, starts = np.arange(self.keys.shape[2]), self.starts[:, None]
        seen = (place < self.lengths[:, None]) & ((place < starts) | (place >= starts + self.visible.shape[2]))
        keys, given = self.keys.copy(), self.values.copy()
        keys.swapaxes(1, 2)[~seen] = np.nan
        given.swapaxes(1, 2)[~seen] = values
        return self._replace(keys=keys, values=given)


def random_texts(sizes: Sizes, *, length: int | None = None, inside: bool = False) -> Texts:
    """Texts of full length, of none and of some, or all of one length; the branches stand behind or inside them."""
    generator = np.random.default_rng(sizes.cached + inside)
    shape = (sizes.batch, sizes.kv_heads, sizes.cached + sizes.slots + 3, sizes.head_dim)
    lengths = np.array([sizes.cached, 0, sizes.cached // 2])[: sizes.batch]
    lengths = lengths if length is None else np.full(sizes.batch, length)
    angles = generator.uniform(0, 2 * np.pi, (sizes.batch, sizes.slots, sizes.head_dim // 2))
    scale = sizes.head_dim**-0.5 * generator.uniform(0.5, 1.5, (sizes.batch, sizes.slots))
    return Texts(
        draw(sizes, *shape, seed=1),
        draw(sizes, *shape, seed=2),
        lengths,
        lengths // 3 if inside else lengths,
        *(part.astype(np.float32) for part in (np.cos(angles), np.sin(angles), scale)),
        generator.integers(1, sizes.slots + 1, (sizes.batch, sizes.branches, sizes.slots)),
    )


@partial(jax.jit, static_argnames=("sizes", "implementation", "behind", "append", "launches"))
def attend(
    heads: jax.Array,
    bias: jax.Array | None,
    texts: Texts,
    plan: RowPlan | None,
    *,
    sizes: Sizes,
    implementation: Implementation,
    behind: bool = False,
    append: bool = False,
    launches: int = 1,
) -> tuple[jax.Array, ...]:
    """A layer's attention to heads in compact places, which have no position yet."""
    attention = PlainAttention(sizes.kv_heads, sizes.group, sizes.head_dim, bias)
    rotary = RotaryTable(texts.cos, texts.sin, texts.scale * sizes.head_dim**0.5)
    starts = None if behind else texts.starts
    rows = BranchRows(
        rotary=rotary,
        scale=texts.scale,
        lengths=texts.lengths,
        starts=starts,
        visible=texts.visible,
        implementation=implementation,
        append=append,
    )
    flat = heads.reshape(*heads.shape[:2], -1)
    with mock.patch.object(branch_attention, "in_two_launches", return_value=launches == 2):
        return branch_attention.attend_branches(attention, flat, (texts.keys, texts.values), rows, plan, correct=False)[
            :3
        ]


@partial(jax.jit, static_argnames=("branches", "append"))
def true_attention(
    heads: jax.Array,
    bias: jax.Array | None,
    texts: Texts,
    source: jax.Array | None,
    *,
    branches: int,
    append: bool = False,
) -> tuple[jax.Array, ...]:
    """Of all rows' heads, one below the other."""
    rotated = reference.rotated_heads(heads, bias, None, texts.cos, texts.sin, branches)
    cached = (texts.keys, texts.values, texts.lengths, texts.starts, texts.scale, texts.visible)
    return reference.branch_attention(rotated, source, *cached, append=append)


def random_heads(sizes: Sizes) -> tuple[np.ndarray, np.ndarray | None]:
    """Of every row, and their bias."""
    per_row = (sizes.kv_heads, sizes.group + 2, sizes.head_dim)
    bias = draw(sizes, *per_row) / np.sqrt(sizes.head_dim).astype(sizes.dtype) if sizes.bias else None
    return draw(sizes, sizes.batch * sizes.rows, *per_row), bias


def check_attention(
    implementation: Implementation,
    sizes: Sizes,
    count: int,
    texts: Texts,
    *,
    behind: bool = False,
    launches: int = 1,
) -> None:
    """Of folded rows; or dense, with a count of 0. `behind` leaves out where the branches start."""
    groups = sizes.groups(implementation)
    own, bias = random_heads(sizes)
    heads, plan, source = own.reshape(groups, -1, *own.shape[1:]), None, None
    if count:
        forests = random_forests(sizes, count)
        plan, source = forests.plan(groups), forests.plan(1).source.reshape(texts.visible.shape)
        _, heads = in_places(sizes, heads, plan)
    spoilt = texts.spoilt(GARBAGE if implementation == "xla" else np.nan)  # XLA multiplies what is not seen by 0
    found = attend(
        heads, bias, spoilt, plan, sizes=sizes, implementation=implementation, behind=behind, launches=launches
    )
    expected = true_attention(own, bias, texts, source, branches=sizes.branches)
    for ours, truth in zip(found, expected, strict=True):
        assert_agrees(sizes, ours, truth)
        assert ours.dtype == jnp.dtype(sizes.dtype)


@jax.jit
def ancestor_state(tables: jax.Array, texts: Texts, source: jax.Array, seen: jax.Array) -> SoftmaxState:
    """The state of each row's source, over the cache and its own branch."""
    queries, keys, values = tables[..., :-2, :], tables[..., -2, :], tables[..., -1, :]
    flat = queries.reshape(queries.shape[0], -1, *queries.shape[3:])
    before = prefix_state(flat, texts.keys, texts.values, texts.lengths)
    before = SoftmaxState(*(part.reshape(*source.shape, *part.shape[2:]) for part in before))
    state = merge(before, block_state(queries, keys, values, seen))
    of_source = jax.vmap(lambda part, branch: part[branch, jnp.arange(branch.shape[1])])
    return SoftmaxState(*(of_source(part, source) for part in state))


FAVOURITE = 5


def random_logits(rows: int, vocab: int) -> np.ndarray:
    """In turn rows with one logit far above the rest, with ties all over, with many at minus infinity, with their best
    at the end, and of one number alone.
    """
    generator = np.random.default_rng(vocab)
    logits = 4 * generator.standard_normal((rows, vocab), np.float32)
    logits[0::5, FAVOURITE] = 100
    logits[1::5] = np.round(logits[1::5] / 4)
    logits[2::5][generator.random(logits[2::5].shape) < 0.5] = -np.inf
    logits[3::5, -3:] = 30
    logits[4::5] = -70
    return logits


class TestOps:
    @each_implementation
    @each([SMALL, replace(SMALL, batch=2), ODD[1]], FULL[:1])
    def test_plan_rows(self, implementation: Implementation, sizes: Sizes, count: int) -> None:
        """Exactly those rows: forced whatever their residual, idle whatever it is, else where it is past delta."""
        forests = random_forests(sizes, count)
        recomputed, parents = forests.grouped(sizes.groups(implementation))
        generator, delta = np.random.default_rng(0), np.float32(0.3)
        lots, any_residual = generator.random(recomputed.shape), generator.random(recomputed.shape)
        folded = np.where(lots < 0.75, delta, delta * any_residual)
        by_residual = np.where(recomputed, delta + 0.01 + any_residual, folded)
        ruled = (lots < 0.5) | (parents == np.arange(parents.shape[1]))
        rule = np.where(ruled, np.where(recomputed, FORCED, IDLE), BY_RESIDUAL)
        residual = np.where(ruled, np.where(lots < 0.1, np.nan, any_residual), by_residual).astype(np.float32)

        given, generations = (residual, rule, delta, parents), sizes.branches - 1
        plan = planned(*given, generations=generations, implementation=implementation)
        for name, truth in vars(true_plan(*given)).items():
            np.testing.assert_array_equal(getattr(plan, name), truth, err_msg=name)
        np.testing.assert_array_equal(plan.recomputed, recomputed)
        assert sizes.batch > 1 or plan.count.tolist() == [count]

    @pytest.mark.parametrize("adds", [False, True], ids=["", "sum"])
    @each_implementation
    @each([SMALL, BFLOAT16, ODD[0]], FULL[:1])
    def test_normed_rows(self, implementation: Implementation, sizes: Sizes, count: int, adds: bool) -> None:
        """Of computed rows alone; places behind them are finite."""
        groups = sizes.groups(implementation)
        hidden, other = (draw(sizes, groups, sizes.batch * sizes.rows // groups, sizes.hidden, seed=i) for i in (0, 1))
        weight, plan = draw(sizes, sizes.hidden), random_forests(sizes, count).plan(groups)
        places = places_of(sizes, plan)
        expected = true_normed(hidden, other if adds else None, weight, EPS, plan, places=places)
        unused = ~plan.recomputed
        given = with_nan(hidden, unused), with_nan(other, unused) if adds else None, weight, EPS, plan
        found = normed(*given, places=places, implementation=implementation)
        assert found.shape == (groups, places, sizes.hidden)
        assert found.dtype == hidden.dtype
        assert np.isfinite(np.asarray(found, np.float32)).all()
        for ours, truth, used in zip(np.asarray(found), np.asarray(expected), plan.count, strict=True):
            assert_agrees(sizes, ours[:used], truth[:used])

    @pytest.mark.parametrize("adds", [False, True], ids=["", "sum"])
    @each_implementation
    @each_dense([SMALL], FULL[:1])
    def test_norm_of_all_rows(self, implementation: Implementation, sizes: Sizes, adds: bool) -> None:
        hidden, other = (draw(sizes, 1, sizes.rows, sizes.hidden, seed=i) for i in (0, 1))
        weight, other = draw(sizes, sizes.hidden), other if adds else None
        found = normed(hidden, other, weight, EPS, None, implementation=implementation)
        assert_agrees(sizes, found, true_normed(hidden, other, weight, EPS, None))

    @each_implementation
    @each([SMALL, BFLOAT16, ODD[0]], FULL[:1])
    def test_add_through(self, implementation: Implementation, sizes: Sizes, count: int) -> None:
        """Also of rows that are as their parents', which have no residual."""
        groups = sizes.groups(implementation)
        forests = random_forests(sizes, count)
        plan, (_, parents) = forests.plan(groups), forests.grouped(groups)
        shape = (groups, sizes.batch * sizes.rows // groups, sizes.hidden)
        hidden, attended, fed = (draw(sizes, *shape, seed=seed) for seed in range(3))
        same = ~plan.recomputed & (plan.source == parents)
        for rows in (hidden, attended):
            rows[same] = np.take_along_axis(rows, parents[..., None], axis=1)[same]
        table, poisoned = in_places(sizes, fed, plan)
        found = added(hidden, attended, poisoned, plan, parents, implementation=implementation)
        expected = true_added(hidden, attended, table, plan, parents)
        for ours, truth in zip(found, expected, strict=True):
            assert_agrees(sizes, ours, truth)
        assert found[0].dtype == hidden.dtype
        assert found[1].dtype == jnp.float32
        assert not np.asarray(found[1])[same].any()

    @pytest.mark.parametrize("gates", [False, True], ids=["", "gate"])
    @each_implementation
    @each_dense([SMALL], FULL[:1])
    def test_sum_of_all_rows(self, implementation: Implementation, sizes: Sizes, gates: bool) -> None:
        hidden, attended, fed = (draw(sizes, 1, sizes.rows, sizes.hidden, seed=seed) for seed in range(3))
        parents = random_forests(sizes, sizes.slots).parents if gates else None
        summed, residual = added(hidden, attended, fed, None, parents, implementation=implementation)
        true_sum, true_residual = true_added(hidden, attended, fed, None, parents)
        assert_agrees(sizes, summed, true_sum)
        if gates:
            assert_agrees(sizes, residual, true_residual)
        else:
            assert residual is None

    @each_implementation
    @pytest.mark.parametrize(
        ("rows", "vocab", "banned", "ranks"),
        [
            (5, 40, 39, 3),
            (1, PART, FAVOURITE, 1),
            (4, PART + 1, -1, 2),
            (5, 2 * PART + 77, 2 * PART + 77, 4),
            (5, 2 * PART + 77, 2 * PART + 75, 4),
            *(
                pytest.param(rows, vocab, 100, 2, marks=pytest.mark.gpu)
                for rows in (32, 288)
                for vocab in (131072, 151936)
            ),
        ],
    )
    def test_likeliest(self, implementation: Implementation, rows: int, vocab: int, banned: int, ranks: int) -> None:
        """Exactly those tokens and logits, also of several parts of the vocabulary."""
        logits = random_logits(rows, vocab)
        found = found_likeliest(logits, banned=banned, ranks=ranks, implementation=implementation)
        expected = true_likeliest(logits, banned, ranks)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.values, expected.values)
        np.testing.assert_allclose(found.logsumexp, expected.logsumexp, rtol=1e-6)
        assert found.ids.dtype == jnp.int32

    @each_implementation
    def test_likeliest_of_too_few(self, implementation: Implementation) -> None:
        """Ranks that no logit is left for have minus infinity, and a token of the vocabulary."""
        logits = np.full((2, 3, 40), -np.inf, np.float32)
        logits[:, :, 7] = 2
        found = found_likeliest(logits, banned=1, ranks=3, implementation=implementation)
        np.testing.assert_array_equal(found.ids, np.broadcast_to([7, 0, 0], (2, 3, 3)))
        np.testing.assert_array_equal(found.values, np.broadcast_to([2, -np.inf, -np.inf], (2, 3, 3)))
        np.testing.assert_array_equal(found.logsumexp, np.full((2, 3), 2))

    @pytest.mark.parametrize("normed", [False, True], ids=["", "normed"])
    @each([SMALL, ODD[0]], FULL)
    def test_rotated_heads(self, sizes: Sizes, count: int, normed: bool) -> None:
        """Places behind the last one may hold anything."""
        norm = None
        if normed:
            query, key = (1 + draw(sizes, sizes.head_dim, seed=seed) / 2 for seed in (1, 2))
            norm = HeadNorm(jnp.asarray(query, sizes.dtype), jnp.asarray(key, sizes.dtype), EPS)
        texts, (own, bias), plan = random_texts(sizes), random_heads(sizes), random_forests(sizes, count).plan(1)
        (table,), (poisoned,) = in_places(sizes, own[None], plan)
        index, angles = plan.index[0], (texts.cos, texts.sin)
        found = jax.jit(partial(rotated_heads, branches=sizes.branches, norm=norm))(
            poisoned, bias, index, plan.count, *angles
        )
        expected = jax.jit(partial(reference.rotated_heads, branches=sizes.branches, norm=norm))(
            table, bias, index, *angles
        )
        used = int(plan.count[0])
        assert_agrees(sizes, np.asarray(found)[:used], np.asarray(expected)[:used])

    @each_implementation
    @each([SMALL, ODD[1]], FULL, slow=[BFLOAT16, ODD[0], *ODD[2:]])
    def test_branch_attention(self, implementation: Implementation, sizes: Sizes, count: int) -> None:
        """Branches that take the place of cached tokens."""
        check_attention(implementation, sizes, count, random_texts(sizes, inside=True))

    @each_implementation
    @each_dense([SMALL], FULL)
    def test_attention_of_all_rows(self, implementation: Implementation, sizes: Sizes) -> None:
        """Branches behind the text, without a plan."""
        check_attention(implementation, sizes, 0, random_texts(sizes), behind=True)

    @each_implementation
    @pytest.mark.parametrize("inside", [False, True], ids=["behind", "inside"])
    @pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 129, 130])
    def test_prefixes_at_the_borders_of_tiles(self, implementation: Implementation, length: int, inside: bool) -> None:
        check_attention(implementation, ODD[1], 9, random_texts(ODD[1], length=length, inside=inside))

    @each([SMALL, ODD[1]], FULL, slow=[BFLOAT16, ODD[0], *ODD[2:]])
    def test_attention_in_two_launches(self, sizes: Sizes, count: int) -> None:
        """The cache before the own branch, with split keys; places of several texts side by side."""
        check_attention("triton", sizes, count, random_texts(sizes, inside=True), launches=2)

    @pytest.mark.parametrize("length", [0, 1, 64, 65, 129])
    def test_splits_without_keys(self, length: int) -> None:
        check_attention("triton", ODD[1], 9, random_texts(ODD[1], length=length), launches=2)

    @each_dense([SMALL, ODD[1]], FULL)
    def test_attention_of_all_rows_in_two_launches(self, sizes: Sizes) -> None:
        check_attention("triton", sizes, 0, random_texts(sizes), behind=True, launches=2)

    @pytest.mark.parametrize("tiles", [Tiles(64, 16), pytest.param(Tiles(32, 128), marks=pytest.mark.slow)], ids=str)
    def test_tiles_of_attention(self, tiles: Tiles) -> None:
        """Queries of several slots in a program, and a last one with too few."""
        sizes = replace(SMALL, branches=2, slots=24, group=3)
        texts, (own, _) = random_texts(sizes, inside=True), random_heads(sizes)
        given = (own, None, texts.keys, texts.values, texts.lengths, texts.starts, texts.scale, texts.visible)
        found = jax.jit(partial(in_one_launch, tiles=tiles))(*given)
        for ours, truth in zip(found, jax.jit(reference.branch_attention)(*given), strict=True):
            assert_agrees(sizes, ours, truth)

    @pytest.mark.parametrize("launches", [1, 2])
    @pytest.mark.parametrize("inside", [False, True], ids=["behind", "inside"])
    @each_dense([replace(SMALL, batch=3, branches=1, slots=8)], [replace(sizes, branches=1) for sizes in FULL])
    def test_append(self, sizes: Sizes, inside: bool, launches: int) -> None:
        """The only branch is written to the cache, and nothing else there changes."""
        texts = random_texts(sizes, inside=inside)
        own, bias = random_heads(sizes)
        before = texts.spoilt()
        found = attend(
            own[None], bias, before, None, sizes=sizes, implementation="triton", append=True, launches=launches
        )
        expected = true_attention(own, bias, texts, None, branches=1, append=True)
        (mixed, *written), (true_mixed, *true_written) = found, expected
        assert_agrees(sizes, mixed, true_mixed)
        place, starts = np.arange(before.keys.shape[2]), texts.starts[:, None]
        taken = (place >= starts) & (place < starts + sizes.slots)
        for tables in zip(written, true_written, before[:2], strict=True):
            ours, truth, old = (np.moveaxis(np.asarray(table, np.float32), 2, 1) for table in tables)
            assert_agrees(sizes, ours[taken], truth[taken])
            np.testing.assert_array_equal(ours[~taken], old[~taken])

    @each([], FULL, slow=[SMALL, ODD[0]])
    def test_correct_state(self, sizes: Sizes, count: int) -> None:
        """Where something of the state survives."""
        texts = random_texts(sizes)
        shape = texts.visible.shape
        own = draw(sizes, sizes.batch, sizes.rows, sizes.kv_heads, sizes.group + 2, sizes.head_dim)
        rows = random_forests(sizes, count).plan(sizes.batch).source
        tables = np.array([of[at] for of, at in zip(own, rows, strict=True)]).reshape(*shape, *own.shape[2:])
        queries, keys, values = tables[..., :-2, :], tables[..., -2, :], tables[..., -1, :]
        source, visible = rows.reshape(shape) // sizes.slots, texts.visible[:, :1]  # a row's source sees the same slots
        seen = np.broadcast_to(np.arange(sizes.slots) < visible[..., None], (*shape, sizes.slots))
        given = (ancestor_state(tables, texts, source, seen), queries, keys, values, source, seen)
        found, expected = jax.jit(correct_state)(*given), jax.jit(reference.correct_state)(*given)
        assert_agrees(sizes, found.surviving, expected.surviving)
        kept = np.asarray(expected.surviving) > 0.05
        assert kept.any()
        for ours, truth in zip(mass_and_values(found), mass_and_values(expected), strict=True):
            assert_agrees(sizes, ours[kept], truth[kept])


def mass_and_values(correction: Correction) -> tuple[np.ndarray, np.ndarray]:
    """Which do not depend on the scale that a state is held at."""
    top, mass, acc = map(np.asarray, correction.state)
    return top + np.log(np.maximum(mass, 1e-30)), acc / mass[..., None]
