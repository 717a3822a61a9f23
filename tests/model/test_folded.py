"""Folded forwards against the oracle that works out every row of every branch by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import folded_oracle
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from flax import nnx
from folded_oracle import Folded, Forest
from random_decoder import CONFIGS, RandomDecoder, random_decoder

from pallas_kernels.rows import compact
from specdiff_jax.model import KVCache, empty_cache
from specdiff_jax.model.branches import FoldedAttention, Folding
from specdiff_jax.model.decoder import BranchOutput

TOLERANCE = 1e-5
LENGTHS, CAPACITY, SLOTS = (9, 3, 0), 12, 4
Starts = tuple[int | None, ...]
BEHIND, INSIDE = (None, None, None), (3, 1, 0)
"""Where the branches stand: behind their texts, or in the middle of one, over the end of one and without one."""
TREE, CHAIN, STAR = [0, 0, 0, 1, 1, 2], [0, 0, 1, 2, 3, 4], [0, 0, 0, 0, 0, 0]
BRANCHES = len(TREE)
ROWS = BRANCHES * SLOTS
Forward = Callable[..., tuple[BranchOutput, jax.Array]]
UNUSED = 39
"""A token that is in no text."""
NEVER, TYPICAL, ALWAYS = -1.0, 0.3, 1e30
"""Thresholds that fold no row, some, and all that are not forced."""
GARBAGE = 1e4
MODELS = {
    "biases": replace(CONFIGS["biases"], num_heads=7, num_kv_heads=1, num_layers=3),
    "head norms, tied": replace(CONFIGS["head norms, tied"], num_heads=12),
    "query scale": replace(CONFIGS["query scale"], num_kv_heads=1, qkv_bias=True),
    "experts": replace(CONFIGS["experts"], num_heads=2),
}
"""With groups of 7, 6, 4 and 1, one of them with a layer more."""
each_model = pytest.mark.parametrize("name", MODELS)


@dataclass(frozen=True)
class Case:
    """A batch of forests: what `Folding` and `Decoder.branches` are given, as numpy arrays."""

    tokens: np.ndarray
    visible: np.ndarray
    parents: np.ndarray
    whole: np.ndarray
    idle: np.ndarray

    @property
    def fresh(self) -> np.ndarray:
        """Rows that hold another token than their parent's."""
        return self.tokens != np.take_along_axis(self.tokens, self.parents[..., None], axis=1)

    def folding(
        self,
        delta: float,
        capacities: tuple[int, ...] = (ROWS,),
        attention: FoldedAttention = "split",
        expected: float | None = None,
    ) -> Folding:
        parents, fresh, whole, idle = map(jnp.array, (self.parents, self.fresh, self.whole, self.idle))
        number = None if expected is None else jnp.array(expected, jnp.float32)
        return Folding(parents, (fresh,), whole, idle, jnp.array(delta, jnp.float32), capacities, attention, number)

    def forest(self, row: int, start: int | None) -> Forest:
        return Forest(
            TEXTS[row, : LENGTHS[row]],
            self.tokens[row],
            self.visible[row],
            self.parents[row],
            self.fresh[row],
            self.whole[row],
            self.idle[row],
            start,
        )

    def permuted(self, order: np.ndarray) -> Case:
        """With the branches in another order, in which parents still stand before their children."""
        parents = np.argsort(order)[self.parents[:, order]]
        return Case(self.tokens[:, order], self.visible[:, order], parents, self.whole[:, order], self.idle[:, order])


def drafts(generator: np.random.Generator, parents: np.ndarray) -> np.ndarray:
    """Each branch is its parent but for one or two tokens."""
    tokens = generator.integers(0, UNUSED, (*parents.shape, SLOTS))
    for row, branch in np.ndindex(*parents.shape):
        if branch:
            changed = generator.permutation(SLOTS)[: 1 + branch % 2]
            kept = np.setdiff1d(np.arange(SLOTS), changed)
            tokens[row, branch, kept] = tokens[row, parents[row, branch], kept]
    return tokens


def typical() -> Case:
    """A tree, a chain and a star, each with branches that are computed whole and one that nobody reads."""
    parents = np.array([TREE, CHAIN, STAR])
    whole, idle = np.zeros(parents.shape, bool), np.zeros(parents.shape, bool)
    whole[:, 0] = whole[0, 2] = whole[1, 3] = whole[2, 4] = True
    idle[0, 4] = idle[1, 5] = idle[2, 1] = True
    whole[0, 4] = True
    tokens = drafts(np.random.default_rng(4), parents)
    return Case(tokens, np.full(tokens.shape, SLOTS), parents, whole, idle)


TEXTS = np.random.default_rng(3).integers(0, UNUSED, (len(LENGTHS), max(LENGTHS)))
CASE = typical()
READ = ~CASE.idle
NOBODY = np.zeros(CASE.idle.shape, bool)


def model_of(name: str) -> RandomDecoder:
    return random_decoder(MODELS[name])


@cache
def cache_of(name: str) -> KVCache:
    """What the oracle makes of each batch row's text, and garbage behind it."""
    model = model_of(name)
    empty = empty_cache(model.config, len(LENGTHS), CAPACITY, jnp.float32)
    keys, values = (
        [np.full(array.shape, GARBAGE, np.float32) for array in kind] for kind in (empty.keys, empty.values)
    )
    for row, length in enumerate(LENGTHS):
        for layer, tables in enumerate(folded_oracle.read_text(model.tensors, model.settings, TEXTS[row, :length])):
            for position, (key, value) in enumerate(tables):
                keys[layer][row, :, position], values[layer][row, :, position] = key, value
    return KVCache(tuple(map(jnp.array, keys)), tuple(map(jnp.array, values)), jnp.array(LENGTHS))


def forward(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    tokens: jax.Array,
    cache: KVCache,
    visible: jax.Array,
    folding: Folding | None,
    starts: jax.Array | None = None,
) -> tuple[BranchOutput, jax.Array]:
    decoder = nnx.merge(graphdef, params)
    output = decoder.branches(tokens, cache, visible, folding, starts=starts)
    return output, decoder.logits(output.hidden)


# Programs that are quick to compile: they run for milliseconds.
jit = partial(jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
compiled = jit(forward)


def run(
    name: str,
    case: Case,
    folding: Folding | None,
    *,
    graphdef: nnx.GraphDef | None = None,
    params: nnx.State | None = None,
    starts: Starts = BEHIND,
    program: Forward = compiled,
) -> tuple[BranchOutput, np.ndarray]:
    """A forward of the plain decoder, with its own weights, unless others are given."""
    model = model_of(name)
    given = None if starts == BEHIND else jnp.array(starts)
    rows = (case.tokens, cache_of(name), case.visible, folding, given)
    output, logits = program(graphdef or model.graphdef, params or model.params, *rows)
    return output, np.asarray(logits)


def truth(name: str, case: Case, delta: float, starts: Starts = BEHIND) -> list[Folded]:
    """The oracle's result for each batch row."""
    model = model_of(name)
    return [
        folded_oracle.forward(model.tensors, model.settings, case.forest(row, start), delta)
        for row, start in enumerate(starts)
    ]


def clear_truth(name: str, case: Case, target: float, starts: Starts = BEHIND) -> tuple[float, list[Folded]]:
    """A threshold near the target that no residual comes close to, so that rounding decides nothing; and the truth."""
    for delta in target * np.linspace(1, 1.5, 51):
        results = truth(name, case, delta, starts)
        apart = [np.abs(of.residual[:, ~case.idle[row]] - delta) for row, of in enumerate(results)]
        if min(map(np.min, apart)) > 1e-3 * delta:
            return float(delta), results
    raise AssertionError(f"every threshold from {target} on is near a residual")


def assert_agrees(output: BranchOutput, logits: np.ndarray, case: Case, results: list[Folded]) -> None:
    """That whatever somebody reads is as the oracle has it."""
    for row, expected in enumerate(results):
        read = ~case.idle[row]
        for layer, report in enumerate(output.reports):
            np.testing.assert_array_equal(report.recomputed[row], expected.recomputed[layer])
            np.testing.assert_allclose(
                report.residual[row, read], expected.residual[layer, read], rtol=1e-4, atol=TOLERANCE
            )
            for ours, theirs in ((output.keys, expected.keys), (output.values, expected.values)):
                heads_last = np.moveaxis(np.asarray(ours[layer][row]), 0, 2)
                np.testing.assert_allclose(heads_last[read], theirs[layer, read], atol=TOLERANCE)
        np.testing.assert_allclose(logits[row, read], expected.logits[read], atol=TOLERANCE)


@pytest.mark.parametrize("target", [0.1, TYPICAL, 0.6, ALWAYS])
@each_model
def test_folded_forwards(name: str, target: float) -> None:
    """Also with a threshold that folds whatever is not forced: the results are finite and the oracle's."""
    delta, results = clear_truth(name, CASE, target)
    output, logits = run(name, CASE, CASE.folding(delta))
    assert_agrees(output, logits, CASE, results)
    assert np.isfinite(logits).all()
    assert all((report.surviving == 1).all() for report in output.reports)


@pytest.mark.parametrize("target", [TYPICAL, ALWAYS])
def test_the_correction_agrees(target: float) -> None:
    delta, results = clear_truth("query scale", CASE, target)
    output, logits = run("query scale", CASE, CASE.folding(delta, attention="correct"))
    assert_agrees(output, logits, CASE, results)
    assert all((report.surviving[report.recomputed] == 1).all() for report in output.reports)
    assert any((report.surviving[~report.recomputed] < 1).any() for report in output.reports)


def test_rows_are_folded_layer_by_layer() -> None:
    """One that was computed may be folded in the next layer, and one that was folded be computed."""
    _, results = clear_truth("biases", CASE, TYPICAL)
    recomputed = np.array([of.recomputed for of in results])
    before, after = recomputed[:, :-1], recomputed[:, 1:]
    assert (before & ~after).any()
    assert (~before & after).any()


@pytest.mark.parametrize("attention", ["split", "correct"])
def test_without_folding_it_is_the_dense_forward(attention: FoldedAttention) -> None:
    """Bit for bit, since the shapes are equal."""
    case = replace(CASE, idle=NOBODY)
    dense, expected = run("query scale", case, None)
    output, logits = run("query scale", case, case.folding(NEVER, attention=attention))
    np.testing.assert_array_equal(logits, expected)
    for ours, theirs in zip((*output.keys, *output.values), (*dense.keys, *dense.values), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert dense.reports == ()
    assert all(report.recomputed.all() for report in output.reports)


@each_model
def test_a_threshold_of_zero_is_not_dense(name: str) -> None:
    """Rows with their parents' tokens are folded in the first layer, although they see other tokens than those do."""
    case = replace(CASE, idle=NOBODY)
    output, logits = run(name, case, case.folding(0.0))
    results = truth(name, case, 0.0)
    assert_agrees(output, logits, case, results)
    forced = case.fresh | case.whole[..., None]
    np.testing.assert_array_equal(output.reports[0].recomputed, forced)
    dense = [of.logits for of in truth(name, case, NEVER)]
    assert np.abs(logits - dense)[:, 1:].max() > 0.01
    np.testing.assert_allclose(logits[:, 0], np.array(dense)[:, 0], atol=TOLERANCE)


def test_one_branch_is_the_dense_forward() -> None:
    case = Case(*(array[:, :1] for array in (CASE.tokens, CASE.visible, CASE.parents, CASE.whole, CASE.idle)))
    output, logits = run("query scale", case, case.folding(ALWAYS, (SLOTS,)))
    assert_agrees(output, logits, case, truth("query scale", case, NEVER))


def test_one_capacity_for_all_layers() -> None:
    """The smallest that holds what is expected; layers tell when they needed more."""
    delta, results = clear_truth("query scale", CASE, TYPICAL)
    needed = np.array([of.recomputed for of in results]).sum(axis=(2, 3)).max(axis=0)
    few, many = needed.min(), needed.max()
    capacities = (int(few) - 1, int(many), ROWS)
    for expected in (few, many, many + 1):
        output, logits = run("query scale", CASE, CASE.folding(delta, capacities, expected=float(expected)))
        assert_agrees(output, logits, CASE, results)
        assert [report.needed for report in output.reports] == needed.tolist()
    output, _ = run("query scale", CASE, CASE.folding(delta, capacities, expected=few - 1.0))
    assert max(int(report.needed) for report in output.reports) > capacities[0]


def test_capacities_change_nothing() -> None:
    """A layer that fills one, and a layer that has a row too many for another."""
    delta, results = clear_truth("query scale", CASE, TYPICAL)
    few, many = sorted(np.array([of.recomputed for of in results]).sum(axis=(2, 3)).max(axis=0).tolist())
    assert few < many - 1
    output, logits = run("query scale", CASE, CASE.folding(delta, (few, many - 1, ROWS)))
    assert_agrees(output, logits, CASE, results)


@pytest.mark.parametrize("drafts_too", [True, False], ids=["causal", "a commit beside drafts"])
def test_rows_may_see_a_part_of_their_branch(drafts_too: bool) -> None:
    visible = np.broadcast_to(np.arange(1, SLOTS + 1), CASE.visible.shape).copy()
    if not drafts_too:
        visible[:, 1:] = SLOTS
    case = replace(CASE, visible=visible)
    delta, results = clear_truth("query scale", case, TYPICAL)
    output, logits = run("query scale", case, case.folding(delta))
    assert_agrees(output, logits, case, results)
    assert np.abs(logits - run("query scale", CASE, CASE.folding(delta))[1]).max() > 0.01


def test_siblings_may_stand_in_any_order() -> None:
    order = np.array([0, 2, 1, 5, 4, 3])
    case = replace(CASE, parents=np.array([TREE, STAR, TREE]))
    delta, _ = clear_truth("query scale", case, 0.6)
    output, logits = run("query scale", case, case.folding(delta))
    permuted = case.permuted(order)
    permuted_output, permuted_logits = run("query scale", permuted, permuted.folding(delta))
    np.testing.assert_allclose(permuted_logits, logits[:, order], atol=1e-6)
    for ours, theirs in zip(permuted_output.reports, output.reports, strict=True):
        np.testing.assert_array_equal(ours.recomputed, theirs.recomputed[:, order])


def test_idle_branches_change_nothing() -> None:
    """Whatever they hold, and as if they were read."""
    name, busy = "query scale", replace(CASE, idle=NOBODY)
    delta, results = clear_truth(name, busy, 0.6)
    output, logits = run(name, CASE, CASE.folding(delta))
    for row, of in enumerate(results):
        np.testing.assert_allclose(logits[row, READ[row]], of.logits[READ[row]], atol=TOLERANCE)
    assert not any(report.recomputed[CASE.idle].any() for report in output.reports)

    def spoilt(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
        return leaf.at[UNUSED].set(jnp.nan) if "embedding" in jax.tree_util.keystr(path) else leaf

    params = jax.tree_util.tree_map_with_path(spoilt, model_of(name).params)
    other = replace(CASE, tokens=np.where(CASE.idle[..., None], UNUSED, CASE.tokens))
    _, beside_nan = run(name, other, CASE.folding(delta), params=params)
    assert np.isnan(beside_nan[CASE.idle]).all()
    np.testing.assert_array_equal(beside_nan[READ], logits[READ])


def test_places_without_a_row_are_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN there reaches nothing."""
    poisoned = []

    def poisoning(rows: jax.Array, index: jax.Array) -> jax.Array:
        table = compact(rows, index)
        poisoned.append(table.shape)
        unused = (index == 0).at[:, 0].set(False)
        return jnp.where(unused.reshape(*unused.shape, *[1] * (table.ndim - 2)), jnp.nan, table)

    name = "experts"
    delta, results = clear_truth(name, CASE, TYPICAL)
    monkeypatch.setattr("pallas_kernels.projection.compact", poisoning)
    monkeypatch.setattr("specdiff_jax.model.branch_attention.compact", poisoning)
    traced_anew = jit(lambda *args: forward(*args))
    output, logits = run(name, CASE, CASE.folding(delta), program=traced_anew)
    assert poisoned
    assert_agrees(output, logits, CASE, results)


def test_branches_may_take_the_place_of_cached_tokens() -> None:
    delta, results = clear_truth("query scale", CASE, TYPICAL, INSIDE)
    output, logits = run("query scale", CASE, CASE.folding(delta), starts=INSIDE)
    assert_agrees(output, logits, CASE, results)


@pytest.mark.parametrize(
    ("target", "starts"),
    [pytest.param(TYPICAL, INSIDE, id="folded"), pytest.param(None, BEHIND, id="dense", marks=pytest.mark.slow)],
)
def test_kernels(target: float | None, starts: Starts, with_kernels: Callable[[RandomDecoder], RandomDecoder]) -> None:
    """They give what plain JAX gives and the oracle has, also where all texts share compact places."""
    name = "query scale"
    graphdef = with_kernels(model_of(name)).graphdef
    traced_anew = jit(lambda *args: forward(*args))
    if target is None:
        case, folding = replace(CASE, idle=NOBODY), None
        results = truth(name, case, NEVER, starts)
    else:
        case = CASE
        delta, results = clear_truth(name, case, target, starts)
        folding = case.folding(delta)
    output, logits = run(name, case, folding, graphdef=graphdef, starts=starts, program=traced_anew)
    plain_output, plain = run(name, case, folding, starts=starts)
    assert len(output.reports) == len(plain_output.reports) == (0 if folding is None else 2)
    np.testing.assert_allclose(logits[~case.idle], plain[~case.idle], atol=TOLERANCE)
    if folding is not None:
        assert_agrees(output, logits, case, results)
    else:
        np.testing.assert_allclose(logits, [of.logits for of in results], atol=TOLERANCE)


@each_model
def test_the_oracle_is_the_dense_one_where_nothing_is_folded(name: str) -> None:
    model = model_of(name)
    for row, folded in enumerate(truth(name, replace(CASE, idle=NOBODY), NEVER)):
        length = LENGTHS[row]
        for branch in range(BRANCHES):
            text = np.concatenate([TEXTS[row, :length], CASE.tokens[row, branch]])
            dense, _ = model.truth(text, oracle.block_after_prefix(length, SLOTS))
            np.testing.assert_allclose(folded.logits[branch], dense[length:], atol=1e-12)
