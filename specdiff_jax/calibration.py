"""Choice of a draft graph from traces of vanilla decoding (Spiffy, arXiv 2509.18085, algorithm 2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from specdiff_jax.draft_graph import DraftNode
from specdiff_jax.errors import InputError

Formula = tuple[int, frozenset[tuple[int, int]]]
"""A level, and the (position rank, vocabulary rank) of every slot that is filled by then."""

Future = tuple[Formula, ...]
"""What a block held one, two, ... steps after a state, as drafts of that state."""

Objective = Literal["saved", "accumulated"]
"""What a graph is chosen for: the forwards that it would have saved, or the counts of its nodes and their parents."""


@dataclass(frozen=True)
class BlockTrace:
    """How vanilla decoding filled one block.

    Attributes:
        states: token ids of the block before the first denoising step and after each; every step fills a slot.
        confidence: the largest probability of each slot, the mask left out, in the distribution of each step.
        ranked: the likeliest token ids of each slot in the distribution of each step, in descending order.
    """

    states: Int[np.ndarray, "states slots"]
    confidence: Float[np.ndarray, "steps slots"]
    ranked: Int[np.ndarray, "steps slots ranks"]


@dataclass(frozen=True)
class DraftLimits:
    """What a draft may be.

    Attributes:
        mask_token_id: the id that stands for a token still to be found.
        sub_block: slots of a block are filled in runs of this width.
        depth: the highest level.
        position_ranks: only ranks below it are drafted.
    """

    mask_token_id: int
    sub_block: int
    depth: int
    position_ranks: int


def calibrated_nodes(
    traces: Iterable[BlockTrace], limits: DraftLimits, budget: int, objective: Objective = "saved"
) -> tuple[DraftNode, ...]:
    """The nodes that would have saved most of the traces' denoising steps.

    Spiffy's own choice ("accumulated") adds to a node's count those of its parents, which a frequent parent gives to
    all of its children; "saved" counts only forwards.

    Args:
        traces: blocks that vanilla decoding filled.
        limits: what a draft may be.
        budget: number of nodes; there are fewer where the traces hold fewer.
        objective: what to choose for.

    Raises:
        InputError: budget or depth is below 1, or the traces hold nothing to draft.
    """
    if budget < 1 or limits.depth < 1:
        raise InputError(f"budget and depth must be at least 1, not {budget} and {limits.depth}")
    futures = count_futures(traces, limits)
    if not futures:
        raise InputError(
            "the calibration prompts give no masked step to draft: "
            "take more of them, longer answers or a higher threshold"
        )
    counts = count_formulas(futures)
    return select_saving(futures, counts, budget) if objective == "saved" else select(counts, budget)


def count_futures(traces: Iterable[BlockTrace], limits: DraftLimits) -> Counter[Future]:
    """How often drafts would have been right one after the other."""
    futures: Counter[Future] = Counter()
    for trace in traces:
        for step in range(len(trace.confidence)):
            future = tuple(_right_formulas(trace, step, limits))
            futures.update([future] if future else [])
    return futures


def count_formulas(futures: Mapping[Future, int]) -> Counter[Formula]:
    """How often each draft would have been right."""
    counts: Counter[Formula] = Counter()
    for future, count in futures.items():
        for formula in future:
            counts[formula] += count
    return counts


def select_saving(futures: Mapping[Future, int], counts: Counter[Formula], budget: int) -> tuple[DraftNode, ...]:
    """Nodes that save forwards: of each future, as many as its beginning that is all chosen is long.

    The sum is maximised greedily: the next is the node that lengthens those beginnings most, and of equals the one of
    the lower level and the smaller pairs.

    Returns:
        nodes in the form of `select`.
    """
    chosen: set[Formula] = set()
    while len(chosen) < budget:
        gains: Counter[Formula] = Counter()
        for future, count in futures.items():
            saved = _beginning(future, chosen)
            if saved < len(future):
                gains[future[saved]] += count * (_beginning(future, chosen | {future[saved]}) - saved)
        if not gains:
            break
        chosen.add(min(gains, key=lambda formula: (-gains[formula], _order(formula))))
    return _linked(sorted(chosen, key=_order), counts)


def select(counts: Counter[Formula], budget: int) -> tuple[DraftNode, ...]:
    """Nodes that are right often, and whose parents are.

    The sum over the chosen nodes of their own counts and those of their chosen parents is maximised greedily: of the
    formulas of level 1 and those with a chosen parent, the next is the one that adds most to the sum, and of equals the
    one of the lower level and the smaller pairs.

    Returns:
        at most `budget` nodes by level, in a level by pairs. A node's parents are all chosen ones that it contains of
        the level below; its fold parent is the most frequent of them.
    """
    chosen: list[Formula] = []
    gains = dict(counts)
    reachable = {formula for formula in counts if formula[0] == 1}
    while reachable and len(chosen) < budget:
        best = min(reachable, key=lambda formula: (-gains[formula], _order(formula)))
        reachable.remove(best)
        chosen.append(best)
        for other in counts.keys() - set(chosen):
            if _is_parent(best, other):
                gains[other] += counts[best]
                reachable.add(other)
            elif _is_parent(other, best):
                gains[other] += counts[other]
    return _linked(sorted(chosen, key=_order), counts)


def _beginning(future: Future, chosen: Collection[Formula]) -> int:
    """How long the beginning is whose drafts are all chosen."""
    return next((length for length, formula in enumerate(future) if formula not in chosen), len(future))


def _right_formulas(trace: BlockTrace, step: int, limits: DraftLimits) -> Iterator[Formula]:
    """What the block held 1, 2, ... steps after the one given, as drafts made with that step's distribution.

    It ends where a token has no rank in the trace.
    """
    base = trace.states[step + 1]
    masked = np.flatnonzero(base == limits.mask_token_id)
    surest_first = masked[np.lexsort((-trace.confidence[step, masked], masked // limits.sub_block))]
    ranks = {
        (int(slot), int(token)): (position, rank)
        for position, slot in enumerate(surest_first[: limits.position_ranks])
        for rank, token in enumerate(trace.ranked[step, slot])
    }
    for level, state in enumerate(trace.states[step + 2 : step + 2 + limits.depth], start=1):
        filled = [int(slot) for slot in masked if state[slot] != limits.mask_token_id]
        tokens = [(slot, int(state[slot])) for slot in filled]
        if any(token not in ranks for token in tokens):
            return
        yield level, frozenset(ranks[token] for token in tokens)


def _linked(formulas: list[Formula], counts: Counter[Formula]) -> tuple[DraftNode, ...]:
    """Formulas as nodes with their parents, in the order given."""
    nodes = []
    for formula in formulas:
        parents = tuple(index for index, other in enumerate(formulas) if _is_parent(other, formula))
        fold_parent = max(parents, key=lambda index: counts[formulas[index]], default=None)
        nodes.append(DraftNode(tuple(sorted(formula[1])), parents, fold_parent))
    return tuple(nodes)


def _is_parent(first: Formula, second: Formula) -> bool:
    return first[0] + 1 == second[0] and first[1] < second[1]


def _order(formula: Formula) -> tuple[int, list[tuple[int, int]]]:
    """A sort key that tells any two formulas apart."""
    return formula[0], sorted(formula[1])
