"""Folded verification in decoding: what folds, what never does, and what comes of it."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffusion_models import FAMILIES, MASK, SUB_BLOCK, diffusion_model, random_prompts
from draft_graphs import RICH
from flax import nnx

from specdiff_jax.block_spec import block_spec
from specdiff_jax.decode import spiffy
from specdiff_jax.decode.block_diffusion import begin
from specdiff_jax.decode.drafting import Drafts, graph_tables
from specdiff_jax.decode.folding import FoldSettings, capacities_of, folded_rows, folding_of, parent_branches
from specdiff_jax.decode.generate import generate
from specdiff_jax.decode.loop import BatchResult
from specdiff_jax.decode.methods import SpecFold, Spiffy, Vanilla, denoising_spec
from specdiff_jax.decode.requests import make_requests, row_keys
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.draft_graph import DraftGraph
from specdiff_jax.errors import InputError
from specdiff_jax.model.branches import LayerReport
from specdiff_jax.model.cache import KVCache, empty_cache

LIMIT = 21
PROMPTS = random_prompts(12, 24)
EVERYTHING = 1e30
each_family = pytest.mark.parametrize("family", FAMILIES)
FAST_DLLM, NEMOTRON = FAMILIES
one_quickly = pytest.mark.parametrize("family", [FAST_DLLM, pytest.param(NEMOTRON, marks=pytest.mark.slow)])
other_quickly = pytest.mark.parametrize("family", [NEMOTRON, pytest.param(FAST_DLLM, marks=pytest.mark.slow)])


def settings(family: str) -> dict[str, object]:
    return {"graph": RICH, "threshold": 0.9, "sub_block": SUB_BLOCK[family]}


def decode(family: str, method: Spiffy, prompts: list[list[int]] = PROMPTS) -> BatchResult:
    model = diffusion_model(family)
    greedy = sampling(0.0, 1.0, 0, model.config.vocab_size)
    asked = make_requests(model, prompts, len(PROMPTS), row_keys(0, len(prompts)), LIMIT, greedy)
    return spiffy.run(model, asked, method, LIMIT)


@cache
def folded(family: str, delta: float, buckets: int = 3, attention: str = "split") -> BatchResult:
    return decode(family, SpecFold(**settings(family), delta=delta, buckets=buckets, attention=attention))


@cache
def dense(family: str) -> BatchResult:
    return decode(family, Spiffy(**settings(family)))


def same_decoding(ours: BatchResult, theirs: BatchResult) -> None:
    for name in ("tokens", "counts", "forwards", "accepted_drafts", "hits"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)


@one_quickly
def test_below_zero_nothing_folds_and_it_is_spiffy(family: str) -> None:
    result = folded(family, -1.0)
    same_decoding(result, dense(family))
    assert result.child_rows is not None
    assert result.folded_rows is not None
    assert result.folded_rows.sum() == 0 < result.child_rows.sum()


@one_quickly
def test_more_folds_at_a_larger_delta(family: str) -> None:
    ratios = []
    for delta in (-1.0, 0.0, 0.1, EVERYTHING):
        result = folded(family, delta)
        assert result.folded_rows is not None
        assert result.child_rows is not None
        ratios.append(result.folded_rows.sum() / result.child_rows.sum())
        assert (result.tokens[result.counts > 0] != MASK).all()
    assert ratios == sorted(ratios)
    assert len(set(ratios)) == 4
    assert 0.5 < ratios[-1] < 1  # slots that a draft fills are computed in the first layer


@pytest.mark.slow
@each_family
def test_capacities_change_nothing_but_time(family: str) -> None:
    same_decoding(folded(family, 0.1, buckets=1), folded(family, 0.1))


@pytest.mark.slow
def test_the_papers_correction_decodes_alike() -> None:
    same_decoding(folded("fast_dllm_v2", 0.1, 1, "correct"), folded("fast_dllm_v2", 0.1))


@pytest.mark.slow
def test_a_row_is_the_same_alone_and_in_a_batch() -> None:
    family = "nemotron_labs_diffusion"
    together = folded(family, 0.1)
    assert together.folded_rows is not None
    method = SpecFold(**settings(family), delta=0.1, buckets=3)
    for row in (2, 9):
        alone = decode(family, method, PROMPTS[row : row + 1])
        assert alone.folded_rows is not None
        assert alone.tokens[0].tolist() == together.tokens[row].tolist()
        assert alone.forwards[0] == together.forwards[row]
        assert alone.folded_rows[0] == together.folded_rows[row]


@other_quickly
def test_commits_hold_nothing_folded(family: str) -> None:
    """Whatever is folded, the cache holds what a forward of the committed text alone gives."""
    model = diffusion_model(family)
    spec = denoising_spec(model.config, Vanilla(sub_block=SUB_BLOCK[family]))
    greedy = sampling(0.0, 1.0, 0, model.config.vocab_size)
    asked = make_requests(model, PROMPTS, len(PROMPTS), row_keys(0, len(PROMPTS)), LIMIT, greedy)
    tables, budget = graph_tables(RICH), RICH.budget
    rows = (1 + budget) * spec.block_size
    fold = FoldSettings(jnp.float32(EVERYTHING), (rows,), "split")
    plan = spiffy.Plan(spec, tables, budget, adopt=True, serial=False, fold=fold)

    @jax.jit
    def run(params: nnx.State) -> spiffy.SpiffyState:
        decoder = nnx.merge(model.graphdef, params)
        start = begin(decoder, asked, spec, capacity=64, room=32)
        state = spiffy.without_drafts(start, budget, budget)
        return jax.lax.fori_loop(
            0, 7, lambda _, now: spiffy.iterate(decoder, now, asked, jnp.float32(0.9), plan), state
        )

    @jax.jit
    def read(params: nnx.State, tokens: jax.Array, visible: jax.Array) -> KVCache | None:
        decoder = nnx.merge(model.graphdef, params)
        cache = empty_cache(model.config, tokens.shape[0], 64, jnp.float32)
        return decoder(tokens, cache, visible=visible).cache

    state = run(model.params)
    lengths = np.asarray(state.cache.lengths)
    going = [row for row in range(len(PROMPTS)) if not state.done[row] and lengths[row] > len(PROMPTS[row])]
    assert len(going) > 2
    assert int(state.accepted[jnp.array(going)].sum()) > 0
    text = np.zeros((len(PROMPTS), 64), np.int32)
    for row, prompt in enumerate(PROMPTS):
        new = np.asarray(state.generated[row])
        text[row, : len(prompt)] = prompt
        text[row, len(prompt) : 64] = np.pad(new, (0, 64))[: 64 - len(prompt)]
    places = np.arange(64)
    visible = places + 1 if spec.causal else (places // spec.block_size + 1) * spec.block_size
    truth = read(model.params, jnp.asarray(text), jnp.broadcast_to(jnp.asarray(visible, jnp.int32), text.shape))
    for ours, theirs in zip((*state.cache.keys, *state.cache.values), (*truth.keys, *truth.values), strict=True):
        for row in going:
            np.testing.assert_allclose(ours[row, :, : lengths[row]], theirs[row, :, : lengths[row]], atol=1e-4)


def test_exact_mode_is_vanilla() -> None:
    family, prompts = "fast_dllm_v2", PROMPTS[:4]
    model, how = diffusion_model(family), {"max_new_tokens": 12, "exact": True}
    expected = generate(model, prompts, Vanilla(0.9, sub_block=SUB_BLOCK[family]), **how)
    results = generate(model, prompts, SpecFold(**settings(family), delta=0.5), **how)
    assert [result.tokens for result in results] == [result.tokens for result in expected]
    assert {result.fold_ratio for result in results} <= {0.0, None}
    assert 0.0 in {result.fold_ratio for result in results}


# What may fold.


def plain_parents(graph: DraftGraph, nodes: list[int]) -> list[int]:
    parents = [0]
    for place, node in enumerate(nodes):
        before = nodes[:place]
        fold_parent = graph.nodes[node].fold_parent
        drafted = [other for other in before if other in graph.nodes[node].parents]
        if fold_parent in before:
            parents.append(1 + before.index(fold_parent))
        else:
            parents.append(1 + before.index(drafted[0]) if drafted else 0)
    return parents


@pytest.mark.parametrize(
    "nodes", [list(range(8)), [2, 0, 4, 5, 7], [0, 4, 1, 2], [5, 4, 7], [0, 5, 7], [3, 6], [1]], ids=str
)
def test_branches_fold_into_parents_that_are_drafted(nodes: list[int]) -> None:
    ours = parent_branches(jnp.array([nodes]), graph_tables(RICH))
    assert ours[0].tolist() == plain_parents(RICH, nodes)


def test_main_complete_and_impossible_drafts_do_not_fold() -> None:
    spec = block_spec(diffusion_model("fast_dllm_v2").config)
    main = [1, 2, 3, MASK, 5, MASK, 7, 8]
    blocks = jnp.array([[main, [1, 2, 3, 4, 5, MASK, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8], main]])
    drafts = Drafts(blocks[:, 1:], jnp.array([[0, 4, 1]]), jnp.array([[True, True, False]]))
    folding = folding_of(blocks, drafts, spec, graph_tables(RICH), FoldSettings(jnp.float32(0.1), (32,), "split"))
    assert folding.parents.tolist() == [[0, 0, 1, 0]]
    assert folding.whole.tolist() == [[True, False, True, False]]
    assert folding.idle.tolist() == [[False, False, False, True]]
    changed = np.zeros((4, 8), bool)
    changed[1, 3] = changed[2, 5] = True
    assert folding.forced[0][0].tolist() == changed.tolist()


def test_folded_rows_are_those_of_possible_drafts_in_all_layers() -> None:
    """Branch 0 is main; draft 1 is impossible."""
    computed = np.ones((2, 1, 3, 4), bool)
    computed[0, 0, 1, :3] = computed[1, 0, 1, :1] = False
    computed[:, 0, 2] = False
    zeros = jnp.zeros(computed.shape[1:])
    reports = [LayerReport(zeros, jnp.asarray(layer), zeros, jnp.int32(0)) for layer in computed]
    assert folded_rows(reports, jnp.array([[True, False]])).tolist() == [4]
    assert folded_rows(reports, jnp.array([[True, True]])).tolist() == [12]


@pytest.mark.parametrize(
    ("rows", "buckets", "expected"),
    [(288, 4, (72, 144, 216, 288)), (64, 1, (64,)), (10, 3, (4, 7, 10)), (2, 8, (1, 2))],
)
def test_capacities(rows: int, buckets: int, expected: tuple[int, ...]) -> None:
    assert capacities_of(rows, buckets) == expected


@pytest.mark.parametrize(("sub_block_cache", "width"), [(False, 8), (True, 4)])
def test_capacities_are_those_that_were_tuned(
    monkeypatch: pytest.MonkeyPatch, sub_block_cache: bool, width: int
) -> None:
    """They are looked up for the rows that a verification has."""

    def lookup(*asked: object) -> None:
        raise LookupError(*asked)

    monkeypatch.setattr(spiffy, "capacities_for", lookup)
    method = SpecFold(RICH, budget=2, sub_block=4, sub_block_cache=sub_block_cache, buckets=3)
    with pytest.raises(LookupError) as caught:
        decode(FAST_DLLM, method)
    assert caught.value.args == (diffusion_model(FAST_DLLM), len(PROMPTS), 3 * width, 3)


@pytest.mark.parametrize("change", [{"delta": float("nan")}, {"buckets": 0}, {"attention": "correction"}])
def test_settings_out_of_range_are_refused(change: dict[str, float | str]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        SpecFold(RICH, **change)
