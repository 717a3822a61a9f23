"""Drafts from ranks, against sorting and plain loops."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_decoder import small_config

from specdiff_jax.block_spec import BlockSpec, block_spec
from specdiff_jax.decode import drafting
from specdiff_jax.decode.drafting import Drafts, graph_tables, no_drafts, position_ranks
from specdiff_jax.decode.verdict import Verdict
from specdiff_jax.draft_graph import DraftGraph, DraftNode, fixed_graph

MASK, SLOTS, BATCH, RANKS = 39, 8, 64, 3

GRAPHS = {
    "siblings": fixed_graph(7, 1),
    "chains": fixed_graph(7, 3),
    "sets": DraftGraph(
        None,
        (
            DraftNode(((0, 0),)),
            DraftNode(((0, 2),)),
            DraftNode(((1, 1), (2, 0))),
            DraftNode(((0, 0), (1, 0), (2, 0), (3, 0))),
            DraftNode(((0, 0), (1, 0)), (0,), 0),
            DraftNode(((0, 0), (1, 1), (2, 0)), (0, 2), 2),
            DraftNode(((0, 0), (1, 1), (2, 0), (5, 0)), (5,), 5),
        ),
    ),
}
each_graph = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


def spec_of(sub_block: int) -> BlockSpec:
    config = small_config(family="fast_dllm_v2", block_size=SLOTS, mask_token_id=MASK)
    return dataclasses.replace(block_spec(config), sub_block=sub_block)


def random_blocks() -> np.ndarray:
    """From no mask to nothing but masks."""
    generator = np.random.default_rng(1)
    masked = generator.random((BATCH, SLOTS)) < np.linspace(0, 1, BATCH)[:, None]
    return np.where(masked, MASK, generator.integers(0, MASK, (BATCH, SLOTS)))


def random_verdict() -> Verdict:
    """With few different confidences, so that many are equal."""
    generator = np.random.default_rng(2)
    ranked = np.argsort(generator.random((BATCH, SLOTS, MASK)), axis=-1)[..., :RANKS]
    best = generator.integers(4, 8, (BATCH, SLOTS)) / 8
    probabilities = best[..., None] * np.array([1.0, 0.5, 0.25])
    # The sampled token and its confidence are of no account.
    tokens, confidence = generator.integers(0, MASK, (BATCH, SLOTS)), generator.random((BATCH, SLOTS))
    return Verdict(
        jnp.asarray(tokens, jnp.int32),
        jnp.asarray(confidence, jnp.float32),
        jnp.asarray(ranked, jnp.int32),
        jnp.asarray(probabilities, jnp.float32),
    )


def sorted_slots(block: np.ndarray, confidence: np.ndarray, sub_block: int) -> list[int]:
    masked = [slot for slot in range(SLOTS) if block[slot] == MASK]
    return sorted(masked, key=lambda slot: (slot // sub_block, -confidence[slot], slot))


@pytest.mark.parametrize("sub_block", [1, 2, 4, 8])
def test_position_ranks_equal_sorting(sub_block: int) -> None:
    blocks, confidence = random_blocks(), np.asarray(random_verdict().probabilities[..., 0])
    ranks = np.asarray(position_ranks(jnp.asarray(blocks == MASK), jnp.asarray(confidence), spec_of(sub_block)))
    for block, sureness, found in zip(blocks, confidence, ranks, strict=True):
        order = sorted_slots(block, sureness, sub_block)
        assert found[order].tolist() == list(range(len(order)))


_draft = jax.jit(drafting.draft, static_argnums=(2, 4, 5))


def draft(blocks: np.ndarray, verdict: Verdict, sub_block: int, graph: DraftGraph, budget: int, full: bool) -> Drafts:
    return jax.tree.map(np.asarray, _draft(blocks, verdict, spec_of(sub_block), graph_tables(graph), budget, full))


def first_row(masks: int) -> np.ndarray:
    """Blocks of which the first has masks at its end alone."""
    blocks = random_blocks()
    blocks[0] = np.where(np.arange(SLOTS) < SLOTS - masks, 1, MASK)
    return blocks


def plain_draft(
    block: np.ndarray, order: list[int], ranked: np.ndarray, node: DraftNode, complete: bool
) -> list[int] | None:
    tokens = block.tolist()
    for position, vocabulary in node.pairs:
        if position >= len(order):
            return None
        tokens[order[position]] = int(ranked[order[position], vocabulary])
    return None if MASK not in tokens and not complete else tokens


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("sub_block", [4, 8])
@each_graph
def test_drafts_equal_a_plain_loop(graph: DraftGraph, sub_block: int, complete: bool) -> None:
    blocks, verdict = random_blocks(), random_verdict()
    drafts = draft(blocks, verdict, sub_block, graph, graph.budget, complete)
    seen = set()
    for row, block in enumerate(blocks):
        order = sorted_slots(block, np.asarray(verdict.probabilities[row, :, 0]), sub_block)
        for index, node in enumerate(graph.nodes):
            expected = plain_draft(block, order, np.asarray(verdict.ranked[row]), node, complete)
            assert bool(drafts.valid[row, index]) == (expected is not None)
            if expected is not None:
                assert drafts.blocks[row, index].tolist() == expected
            seen.add(expected is None)
    assert drafts.nodes.tolist() == [list(range(graph.budget))] * BATCH
    assert seen == {True, False}


@pytest.mark.parametrize("budget", [1, 3])
def test_a_small_budget_keeps_the_drafts_of_some_nodes(budget: int) -> None:
    graph, blocks, verdict = GRAPHS["sets"], random_blocks(), random_verdict()
    everything = draft(blocks, verdict, 4, graph, graph.budget, True)
    some = draft(blocks, verdict, 4, graph, budget, True)
    for row in range(BATCH):
        nodes = some.nodes[row].tolist()
        assert len(set(nodes)) == budget
        assert some.blocks[row].tolist() == [everything.blocks[row, node].tolist() for node in nodes]
        assert some.valid[row].tolist() == [bool(everything.valid[row, node]) for node in nodes]


@pytest.mark.parametrize("complete", [True, False])
def test_no_possible_draft_gives_way_to_an_impossible_one(complete: bool) -> None:
    graph, budget, blocks, verdict = GRAPHS["sets"], 3, random_blocks(), random_verdict()
    everything = draft(blocks, verdict, 8, graph, graph.budget, complete)
    some = draft(blocks, verdict, 8, graph, budget, complete)
    possible = np.minimum(np.asarray(everything.valid).sum(axis=1), budget)
    assert np.asarray(some.valid).sum(axis=1).tolist() == possible.tolist()
    assert {0, 2, budget} == set(possible.tolist())


def test_near_the_end_of_a_block_the_likeliest_draft_is_still_the_first() -> None:
    """A node isn't worse for children that the block has no masks for."""
    graph = DraftGraph(None, (DraftNode(((0, 0),)), DraftNode(((0, 2),)), DraftNode(((0, 0), (1, 0), (2, 0)), (0,), 0)))
    drafts = draft(first_row(masks=2), random_verdict(), 8, graph, 1, True)
    assert drafts.nodes[0].tolist() == [0]


def test_drafts_are_ordered_by_probability() -> None:
    """By the mean log probability of their tokens: not the sum, which would shun sets."""
    graph = DraftGraph(None, (DraftNode(((0, 1),)), DraftNode(((1, 0),)), DraftNode(((0, 0), (1, 0)))))
    probabilities = np.ones((BATCH, SLOTS, RANKS), np.float32)
    probabilities[0, 5:] = [[0.9, 0.05, 0.01], [0.6, 0.3, 0.05], [0.5, 0.2, 0.1]]
    verdict = random_verdict()._replace(probabilities=jnp.asarray(probabilities))
    drafts = draft(first_row(masks=3), verdict, 8, graph, 2, True)
    assert drafts.nodes[0].tolist() == [2, 1]


def test_stand_ins_are_not_valid() -> None:
    drafts = no_drafts(jnp.asarray(random_blocks()), 3)
    assert drafts.blocks.shape == (BATCH, 3, SLOTS)
    assert not drafts.valid.any()


# Pruning.


def plain_prune(log_odds: list[float], graph: DraftGraph, budget: int) -> list[int]:
    def score(node: int) -> float:
        children = [child for child, other in enumerate(graph.nodes) if node in other.parents]
        return (log_odds[node] + max(map(score, children))) / 2 if children else log_odds[node]

    kept: list[int] = []
    while len(kept) < budget:
        reachable = [
            index
            for index, node in enumerate(graph.nodes)
            if index not in kept and (not node.parents or set(node.parents) & set(kept))
        ]
        kept.append(min(reachable, key=lambda index: (-score(index), index)))
    return kept


TABLES = {name: graph_tables(graph) for name, graph in GRAPHS.items()}
_prune = jax.jit(drafting.prune, static_argnums=2)


def prune(log_odds: list[list[float]], name: str, budget: int) -> list[list[int]]:
    return _prune(jnp.asarray(log_odds, jnp.float32), TABLES[name], budget).tolist()


# Eighths, so that float32 halves them exactly.
log_odds_of_nodes = st.lists(st.integers(-40, 0).map(lambda value: value / 8), min_size=7, max_size=7)


@settings(deadline=None, max_examples=60)
@given(log_odds=log_odds_of_nodes, name=st.sampled_from(list(GRAPHS)), budget=st.sampled_from([1, 2, 4, 6]))
def test_prune_equals_a_plain_greedy(log_odds: list[float], name: str, budget: int) -> None:
    graph = GRAPHS[name]
    (kept,) = prune([log_odds], name, budget)
    assert kept == plain_prune(log_odds, graph, budget)
    for index in kept:
        parents = graph.nodes[index].parents
        assert not parents or set(parents) & set(kept)
    assert kept == prune([log_odds], name, 6)[0][:budget]


def test_rows_are_pruned_apart() -> None:
    log_odds = np.random.default_rng(3).integers(-40, 0, (16, 7)) / 8
    kept = prune(log_odds.tolist(), "chains", 4)
    assert kept == [plain_prune(row, GRAPHS["chains"], 4) for row in log_odds.tolist()]
    assert len({tuple(row) for row in kept}) > 3
