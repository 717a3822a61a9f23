"""From a draft graph and the latest distribution to draft states of the block (Spiffy, arXiv 2509.18085).

A graph names tokens by their ranks alone, so it is fixed before decoding; the distribution that gave the current state
says what they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.decode.verdict import Verdict
from specdiff_jax.draft_graph import DraftGraph

_TINY = 1e-30
_NEVER = -1e30
"""Log odds of a node that is impossible."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class GraphTables:
    """A graph as arrays, so that a compiled loop takes any graph of the same sizes.

    Attributes:
        positions: position ranks of each node's pairs.
        tokens: vocabulary ranks of them.
        used: which pairs there are; nodes have different numbers of them.
        levels: denoising steps behind main that each node stands for.
        parents: whether a node (first axis) has another (second axis) as a parent.
        fold_parents: the node whose work each node shares when folded; -1 is main.
        depth: the highest level.
        ranks: how many tokens of a slot the graph can name.
    """

    positions: Int[Array, "nodes pairs"]
    tokens: Int[Array, "nodes pairs"]
    used: Bool[Array, "nodes pairs"]
    levels: Int[Array, " nodes"]
    parents: Bool[Array, "nodes nodes"]
    fold_parents: Int[Array, " nodes"]
    depth: int = field(metadata={"static": True})
    ranks: int = field(metadata={"static": True})


class Drafts(NamedTuple):
    """Draft states of each row's block.

    Attributes:
        blocks: the states.
        nodes: of the graph that they stand for.
        valid: whether the block has the masks that the node fills.
    """

    blocks: Int[Array, "batch drafts slots"]
    nodes: Int[Array, "batch drafts"]
    valid: Bool[Array, "batch drafts"]


def graph_tables(graph: DraftGraph) -> GraphTables:
    """The arrays of a graph."""
    count, width = graph.budget, max(len(node.pairs) for node in graph.nodes)
    pairs = np.zeros((count, width, 2), np.int32)
    used = np.zeros((count, width), bool)
    parents = np.zeros((count, count), bool)
    for index, node in enumerate(graph.nodes):
        pairs[index, : len(node.pairs)] = node.pairs
        used[index, : len(node.pairs)] = True
        parents[index, list(node.parents)] = True
    return GraphTables(
        positions=jnp.asarray(pairs[..., 0]),
        tokens=jnp.asarray(pairs[..., 1]),
        used=jnp.asarray(used),
        levels=jnp.array(graph.levels, jnp.int32),
        parents=jnp.asarray(parents),
        fold_parents=jnp.array([-1 if node.fold_parent is None else node.fold_parent for node in graph.nodes]),
        depth=graph.depth,
        ranks=graph.vocabulary_ranks,
    )


def no_drafts(block: Int[Array, "batch slots"], budget: int) -> Drafts:
    """Stand-ins, none of which is valid."""
    batch = block.shape[0]
    blocks = jnp.broadcast_to(block[:, None], (batch, budget, block.shape[1]))
    return Drafts(blocks, jnp.zeros((batch, budget), jnp.int32), jnp.zeros((batch, budget), bool))


def draft(
    block: Int[Array, "batch slots"],
    verdict: Verdict,
    spec: BlockSpec,
    tables: GraphTables,
    budget: int,
    complete: bool,
    slots: Bool[Array, "batch slots"] | None = None,
) -> Drafts:
    """The most promising drafts of a block.

    Args:
        block: the current state.
        verdict: the distribution that gave it.
        spec: the family's rules.
        tables: the draft graph.
        budget: how many; at most the graph's nodes.
        complete: whether drafts without masks are of use.
        slots: the only ones that a draft may fill, and has to leave a mask in; None is any.
    """
    masked = block == spec.mask_token_id
    ranks = position_ranks(masked, verdict.probabilities[..., 0], spec)
    count, width = tables.positions.shape
    blocks = jnp.broadcast_to(block[:, None], (block.shape[0], count, block.shape[1]))
    odds = jnp.zeros((block.shape[0], count), jnp.float32)
    for pair in range(width):
        named = tables.used[:, pair, None] & masked[:, None] & (ranks[:, None] == tables.positions[:, pair, None])
        tokens, probabilities = (
            jnp.moveaxis(ranked, 2, 1)[:, tables.tokens[:, pair]] for ranked in (verdict.ranked, verdict.probabilities)
        )
        blocks = jnp.where(named, tokens, blocks)
        odds += (
            jnp.log(jnp.maximum(jnp.sum(jnp.where(named, probabilities, 0.0), axis=2), _TINY)) * tables.used[:, pair]
        )
    farthest = jnp.max(jnp.where(tables.used, tables.positions, -1), axis=1)
    valid = farthest < jnp.sum(masked, axis=1, keepdims=True)
    left = blocks == spec.mask_token_id
    if slots is not None:
        valid &= jnp.all((blocks == block[:, None]) | slots[:, None], axis=2) & jnp.any(left & slots[:, None], axis=2)
    elif not complete:
        valid &= jnp.any(left, axis=2)
    everything = Drafts(blocks, jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), valid.shape), valid)
    if budget == count:
        return everything
    chosen = prune(jnp.where(valid, odds / tables.used.sum(1), _NEVER), tables, budget)
    return Drafts(
        jnp.take_along_axis(blocks, chosen[..., None], axis=1), chosen, jnp.take_along_axis(valid, chosen, axis=1)
    )


def position_ranks(
    masked: Bool[Array, "batch slots"], confidence: Float[Array, "batch slots"], spec: BlockSpec
) -> Int[Array, "batch slots"]:
    """The place of every masked slot among them: sub-blocks from left to right, within one the surest first.

    Slots without a mask get numbers that mean nothing.
    """
    slots = jnp.arange(masked.shape[1])
    sub_blocks = slots // spec.sub_block
    mine, other = confidence[:, :, None], confidence[:, None, :]
    surer = (other > mine) | ((other == mine) & (slots < slots[:, None]))
    before = (sub_blocks < sub_blocks[:, None]) | ((sub_blocks == sub_blocks[:, None]) & surer)
    return jnp.sum(before & masked[:, None, :], axis=2)


def prune(log_odds: Float[Array, "batch nodes"], tables: GraphTables, budget: int) -> Int[Array, "batch budget"]:
    """The most promising nodes, none without one of its parents.

    A node's score is the geometric mean of its own, itself that of the probabilities of its pairs, and its best
    possible child's score (Spiffy v4, dynamic pruning).

    Args:
        log_odds: mean log probability of each node's pairs.
        tables: the draft graph.
        budget: number of nodes that are kept.
    """
    scores = log_odds
    for level in range(tables.depth - 1, 0, -1):
        children = jnp.where(tables.parents.T, scores[:, None, :], -jnp.inf)  # [batch, node, child]
        best = jnp.max(children, axis=2)
        blended = jnp.where(best > _NEVER, (log_odds + best) / 2, log_odds)
        scores = jnp.where(tables.levels == level, blended, scores)
    nodes = jnp.arange(scores.shape[1])
    kept = jnp.zeros(scores.shape, bool)
    chosen = []
    for _ in range(budget):
        reachable = (tables.levels == 1) | jnp.any(tables.parents & kept[:, None], axis=2)
        best_node = jnp.argmax(jnp.where(reachable & ~kept, scores, -jnp.inf), axis=1)
        kept |= nodes == best_node[:, None]
        chosen.append(best_node)
    return jnp.stack(chosen, axis=1).astype(jnp.int32)
