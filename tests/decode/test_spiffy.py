"""Multi-branch verification: vanilla's tokens, the oracle's forwards and hits, in any batch and any order of drafts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import spiffy_oracle
from diffusion_models import (
    BLOCK,
    FAMILIES,
    SUB_BLOCK,
    diffusion_decoder,
    diffusion_model,
    oracle_rules,
    random_prompts,
)
from draft_graphs import RICH
from random_decoder import random_decoder, small_config
from spiffy_oracle import Node, Speculation
from workers import run_worker

from specdiff_jax.decode import block_diffusion, spiffy
from specdiff_jax.decode.generate import Generation, check_method, generate
from specdiff_jax.decode.graph_key import graph_key
from specdiff_jax.decode.loop import BatchResult, OnTokens
from specdiff_jax.decode.methods import Method, Spiffy, Vanilla
from specdiff_jax.decode.requests import make_requests, row_keys
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.draft_graph import DraftGraph, DraftNode, fixed_graph
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model

THRESHOLDS = [0.6, 0.9, 1.0]
LIMIT = 21  # no multiple of the block
PROMPTS = random_prompts(40, 24)
SEEDS = list(range(len(PROMPTS)))

ORACLES: dict[str, Callable[..., Speculation]] = {
    "fast_dllm_v2": spiffy_oracle.fast_dllm_v2,
    "fast_dllm_v2 without adoption": partial(spiffy_oracle.fast_dllm_v2, adopt=False),
    "nemotron_labs_diffusion": spiffy_oracle.nemotron,
    "nemotron_labs_diffusion without adoption": partial(spiffy_oracle.nemotron, adopt=False),
}
each_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if "without" in kind else []) for kind in ORACLES]
)


def family_of(kind: str) -> str:
    return kind.removesuffix(" without adoption")


def vanilla(family: str, threshold: float) -> Vanilla:
    return Vanilla(threshold, sub_block=SUB_BLOCK[family])


def drafting(kind: str, threshold: float, graph: DraftGraph = RICH, budget: int | None = None) -> Spiffy:
    family = family_of(kind)
    return Spiffy(graph, budget, threshold, SUB_BLOCK[family], adopt=family == kind)


def decode(
    model: Model,
    method: Vanilla | Spiffy,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    seeds: Sequence[int] = SEEDS,
    temperature: float = 0.0,
    on_tokens: OnTokens | None = None,
) -> BatchResult:
    """All prompts in one batch, which is as large for any number of them, so that it compiles once."""
    settings = sampling(temperature, 1.0, 0, model.config.vocab_size)
    asked = make_requests(model, prompts, len(PROMPTS), row_keys(seeds, len(seeds)), LIMIT, settings)
    if isinstance(method, Vanilla):
        return block_diffusion.run(model, asked, method, LIMIT, on_tokens)
    return spiffy.run(model, asked, method, LIMIT, on_tokens)


def tokens_of(result: BatchResult) -> list[tuple[int, ...]]:
    return [tuple(row[:count].tolist()) for row, count in zip(result.tokens, result.counts, strict=True)]


def steps_of(result: BatchResult) -> list[tuple[int, ...]]:
    return [tuple(row[:count].tolist()) for row, count in zip(result.step_map, result.counts, strict=True)]


@cache
def plain(family: str, threshold: float) -> BatchResult:
    return decode(diffusion_model(family), vanilla(family, threshold))


@cache
def drafted(kind: str, threshold: float) -> BatchResult:
    return decode(diffusion_model(family_of(kind)), drafting(kind, threshold))


def nodes_for_oracle(graph: DraftGraph) -> list[Node]:
    return [(level, node.pairs, node.parents) for level, node in zip(graph.levels, graph.nodes, strict=True)]


# Exact mode.


def expect_vanillas_tokens(
    family: str, budget: int, temperature: float, threshold: float, prompts: Sequence[Sequence[int]]
) -> list[Generation]:
    model = diffusion_model(family)
    ask = partial(generate, model, prompts, max_new_tokens=12, temperature=temperature, seed=3, exact=True)
    expected = ask(vanilla(family, threshold))
    results = ask(drafting(family, threshold, budget=budget))
    assert [result.tokens for result in results] == [result.tokens for result in expected]
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.forwards + ours.accepted_drafts == theirs.forwards
    return results


@pytest.mark.parametrize(
    ("family", "budget", "temperature"), [("fast_dllm_v2", 8, 0.0), ("nemotron_labs_diffusion", 4, 0.7)]
)
def test_exact_mode_gives_vanillas_tokens(family: str, budget: int, temperature: float) -> None:
    """A share of what the next test goes through."""
    accepted = 0
    for seed, threshold in enumerate(THRESHOLDS):
        prompts = random_prompts(34, 24, seed=100 * budget + seed)
        results = expect_vanillas_tokens(family, budget, temperature, threshold, prompts)
        accepted += sum(result.accepted_drafts for result in results)
    assert accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("budget", [1, 2, 4, 7, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_exact_mode_gives_vanillas_tokens_for_200_prompts(family: str, budget: int, temperature: float) -> None:
    for threshold in THRESHOLDS:
        expect_vanillas_tokens(family, budget, temperature, threshold, random_prompts(200, 24, seed=9))


@pytest.mark.slow
def test_exact_mode_equals_a_batch_in_float32() -> None:
    family = "fast_dllm_v2"
    exact = generate(
        diffusion_model(family), PROMPTS[:8], drafting(family, 0.6, budget=8), max_new_tokens=12, exact=True
    )
    batched = tokens_of(drafted(family, 0.6))
    assert [result.tokens for result in exact] == [tokens[:12] for tokens in batched[:8]]


# Batches.


@pytest.mark.parametrize("threshold", THRESHOLDS)
@each_kind
def test_a_batch_equals_the_oracle(kind: str, threshold: float) -> None:
    decoder, rules = diffusion_decoder(family_of(kind)), oracle_rules(family_of(kind), threshold, LIMIT)
    result = drafted(kind, threshold)
    truth = [
        ORACLES[kind](decoder.tensors, decoder.settings, prompt, rules, nodes_for_oracle(RICH)) for prompt in PROMPTS
    ]
    assert tokens_of(result) == [trace.tokens for trace in truth]
    assert steps_of(result) == [trace.steps for trace in truth]
    assert result.forwards.tolist() == [trace.forwards for trace in truth]
    assert result.accepted_drafts.tolist() == [trace.accepted for trace in truth]
    assert result.hits is not None
    assert [tuple(row) for row in result.hits.tolist()] == [trace.hits for trace in truth]
    assert result.fold_parent_hits is not None
    after_fold_parents = [
        [trace.ways[node.fold_parent, index] for index, node in enumerate(RICH.nodes)] for trace in truth
    ]
    assert result.fold_parent_hits.tolist() == after_fold_parents


@each_kind
def test_every_level_and_kind_of_node_is_hit(kind: str) -> None:
    """Otherwise the comparisons here say little."""
    hits = np.sum([drafted(kind, threshold).hits for threshold in THRESHOLDS], axis=(0, 1))
    assert (hits > 0).sum() >= 7, hits
    assert hits[1] > 0
    assert hits[6] + hits[7] > 0


def test_some_drafts_come_after_another_parent_than_that_which_they_fold_into() -> None:
    """Otherwise counts of fold parents say no more than those of hits."""
    result = drafted("fast_dllm_v2", 0.9)
    assert result.hits is not None
    assert result.fold_parent_hits is not None
    hits, after_fold_parents = result.hits.sum(axis=0), result.fold_parent_hits.sum(axis=0)
    assert (hits[:4] == after_fold_parents[:4]).all()
    assert 0 < after_fold_parents[4:].sum() < hits[4:].sum()


@pytest.mark.parametrize("threshold", THRESHOLDS)
@each_kind
def test_every_accepted_draft_saves_a_forward(kind: str, threshold: float) -> None:
    expected, result = plain(family_of(kind), threshold), drafted(kind, threshold)
    assert tokens_of(result) == tokens_of(expected)
    assert (result.forwards + result.accepted_drafts).tolist() == expected.forwards.tolist()


@each_kind
def test_only_adoption_saves_a_commit(kind: str) -> None:
    """The commit gives the next block's first token: adopted, in the forward that gave the block's last one."""
    same = 0
    for prompt, steps in zip(PROMPTS, steps_of(drafted(kind, 0.9)), strict=True):
        first = len(prompt) % BLOCK if kind.startswith("fast_dllm_v2") else 0
        for seed in range(BLOCK - first, len(steps), BLOCK):
            same += max(steps[seed - BLOCK if seed >= BLOCK else 0 : seed]) == steps[seed]
    assert (same > 0) == (kind in FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_is_the_same_alone_and_in_a_batch(family: str) -> None:
    model, method = diffusion_model(family), drafting(family, 0.6)
    together = drafted(family, 0.6)
    assert together.hits is not None
    for row in (3, 7, 11, 30):
        alone = decode(model, method, PROMPTS[row : row + 1], SEEDS[row : row + 1])
        assert alone.hits is not None
        assert tokens_of(alone)[0] == tokens_of(together)[row]
        assert steps_of(alone)[0] == steps_of(together)[row]
        assert alone.hits[0].tolist() == together.hits[row].tolist()
        assert alone.forwards[1:].tolist() == [0] * (len(PROMPTS) - 1)


@pytest.mark.slow
def test_a_sampled_batch_with_a_small_budget_gives_vanillas_tokens() -> None:
    """And a row draws the same at any place."""
    model, method = diffusion_model("fast_dllm_v2"), drafting("fast_dllm_v2", 0.6, budget=3)
    expected = decode(model, vanilla("fast_dllm_v2", 0.6), temperature=0.7)
    result = decode(model, method, temperature=0.7)
    assert tokens_of(result) == tokens_of(expected)
    assert (result.forwards + result.accepted_drafts).tolist() == expected.forwards.tolist()
    assert result.accepted_drafts.sum() > 0
    turned = decode(model, method, PROMPTS[::-1], SEEDS[::-1], temperature=0.7)
    assert tokens_of(turned)[::-1] == tokens_of(result)
    assert turned.forwards[::-1].tolist() == result.forwards.tolist()
    others = decode(model, method, seeds=[seed + 100 for seed in SEEDS], temperature=0.7)
    assert tokens_of(others) != tokens_of(result)


# Graphs.


def permuted(graph: DraftGraph, order: Sequence[int]) -> DraftGraph:
    """The same graph with its nodes in another order; `order` lists the old indices."""
    place = {old: new for new, old in enumerate(order)}
    nodes = [graph.nodes[old] for old in order]
    return DraftGraph(
        None,
        tuple(
            DraftNode(
                node.pairs,
                tuple(sorted(place[parent] for parent in node.parents)),
                None if node.fold_parent is None else place[node.fold_parent],
            )
            for node in nodes
        ),
    )


def test_the_order_of_siblings_does_not_matter() -> None:
    order = [3, 2, 1, 0, 6, 5, 4, 7]
    family = "nemotron_labs_diffusion"
    for threshold in (0.6, 1.0):
        result = decode(diffusion_model(family), drafting(family, threshold, permuted(RICH, order)))
        usual = drafted(family, threshold)
        assert result.hits is not None
        assert usual.hits is not None
        assert tokens_of(result) == tokens_of(usual)
        assert result.forwards.tolist() == usual.forwards.tolist()
        assert result.hits.tolist() == usual.hits[:, order].tolist()


# A block begins with a token, so that after a step at most 6 of 8 slots have masks.
NO_SUCH_MASK = DraftGraph(
    None,
    tuple(DraftNode(((rank, token),)) for rank in (6, 7) for token in (0, 1))
    + tuple(DraftNode(((rank, 0), (6, 0)), (0,), 0) for rank in (0, 1, 2))
    + (DraftNode(((0, 0), (1, 0), (6, 0)), (4, 5), 4),),
)
UNLIKELIEST = DraftGraph(None, (DraftNode(((0, 38),)), DraftNode(((0, 38), (1, 38)), (0,), 0)))


@pytest.mark.parametrize(
    "graph", [NO_SUCH_MASK, pytest.param(UNLIKELIEST, marks=pytest.mark.slow)], ids=["no such mask", "unlikeliest"]
)
def test_impossible_drafts_cost_nothing_but_time(graph: DraftGraph) -> None:
    family = "nemotron_labs_diffusion"
    expected = plain(family, 0.6)
    result = decode(diffusion_model(family), drafting(family, 0.6, graph))
    assert tokens_of(result) == tokens_of(expected)
    assert result.forwards.tolist() == expected.forwards.tolist()
    assert result.accepted_drafts.tolist() == [0] * len(PROMPTS)


# Streaming and devices.


def test_streamed_tokens_are_a_final_prefix() -> None:
    family = "nemotron_labs_diffusion"
    looks: list[list[tuple[int, ...]]] = []

    def look(tokens: np.ndarray, counts: np.ndarray) -> None:
        looks.append([tuple(row[:count].tolist()) for row, count in zip(tokens, counts, strict=True)])

    final = tokens_of(decode(diffusion_model(family), drafting(family, 0.9), on_tokens=look))
    assert final == tokens_of(drafted(family, 0.9))
    assert len(looks) > 3
    assert looks[-1] == final
    assert any(0 < len(row) < len(last) for row, last in zip(looks[1], final, strict=True))
    for seen in looks:
        assert all(row == last[: len(row)] for row, last in zip(seen, final, strict=True))


def test_meshes_give_one_devices_tokens() -> None:
    runs = run_worker(Path(__file__).with_name("spiffy_sharded_worker.py"), devices=4)
    expected = runs.pop("vanilla")
    assert list(runs) == ["(2, 2)"]
    for mesh, answers in runs.items():
        assert answers["tokens"] == expected["tokens"], mesh
        saved = np.subtract(expected["forwards"], answers["forwards"])
        assert saved.tolist() == answers["accepted"], mesh
        assert saved.sum() > 0


# Refusals.


def calibrated(model: Model, method: Vanilla) -> DraftGraph:
    return DraftGraph(graph_key(model, method), RICH.nodes)


def test_a_graph_for_the_same_settings_is_taken() -> None:
    model = diffusion_model("fast_dllm_v2")
    graph = calibrated(model, Vanilla(0.9, sub_block=4))
    check_method(model, Spiffy(graph, threshold=0.9, sub_block=4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": 0.8}, "threshold 0.9, not 0.8"),
        ({"sub_block": 2}, "sub_block 4, not 2"),
    ],
)
def test_a_graph_for_other_settings_is_refused_unless_forced(changes: dict[str, float], message: str) -> None:
    model = diffusion_model("fast_dllm_v2")
    method = Spiffy(calibrated(model, Vanilla(0.9, sub_block=4)), threshold=0.9, sub_block=4)
    other = dataclasses.replace(method, **changes)
    with pytest.raises(InputError, match=f"method spiffy is not available for tiny: .*{message}") as refusal:
        generate(model, [[1]], other)
    assert "\n" not in str(refusal.value)
    check_method(model, dataclasses.replace(other, force=True))


def test_a_graph_for_another_model_or_block_is_refused_unless_forced() -> None:
    model, other = diffusion_model("fast_dllm_v2"), diffusion_model("fast_dllm_v2", 1)
    method = Spiffy(calibrated(other, Vanilla()))
    with pytest.raises(InputError, match="the draft graph was made for model"):
        check_method(model, method)
    check_method(model, dataclasses.replace(method, force=True))
    wide = random_decoder(dataclasses.replace(model.config, block_size=16))
    method = Spiffy(calibrated(Model("wide", wide.config, wide.graphdef, wide.params, None, ()), Vanilla()))
    with pytest.raises(InputError, match="block_size 16, not 8"):
        check_method(model, method)
    check_method(model, dataclasses.replace(method, force=True))


def test_the_same_weights_in_another_dtype_are_the_same_model() -> None:
    model = diffusion_model("fast_dllm_v2")
    decoder = diffusion_decoder("fast_dllm_v2")
    half = dataclasses.replace(model, params=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), decoder.params))
    assert graph_key(half, Vanilla()) == graph_key(model, Vanilla())


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (DraftGraph(None, (DraftNode(((8, 0),)),)), "position rank 8 is beyond a block of 8"),
        (DraftGraph(None, (DraftNode(((0, 39),)),)), "vocabulary rank 39 is beyond the vocabulary of 39"),
    ],
)
def test_ranks_beyond_the_model_are_refused_even_when_forced(graph: DraftGraph, message: str) -> None:
    for force in (False, True):
        with pytest.raises(InputError, match=message):
            check_method(diffusion_model("fast_dllm_v2"), Spiffy(graph, force=force))


def test_an_autoregressive_model_is_refused() -> None:
    decoder = random_decoder(small_config())
    model = Model("tiny", decoder.config, decoder.graphdef, decoder.params, None, ())
    method: Method = Spiffy(fixed_graph(2, 1), force=True)
    with pytest.raises(InputError, match="method spiffy is not available for tiny: a llama model is no diffusion"):
        generate(model, [[1]], method)


@pytest.mark.parametrize("budget", [0, -1, 9])
def test_budgets_beyond_the_graph_are_refused(budget: int) -> None:
    with pytest.raises(InputError, match=f"budget must be from 1 to 8, the nodes of the graph, not {budget}"):
        Spiffy(RICH, budget)
