"""Draft graphs: which guesses at the states to come are verified together with the current one (Spiffy)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass

from specdiff_jax.errors import InputError
from specdiff_jax.keys import shown


@dataclass(frozen=True)
class DraftNode:
    """A draft without tokens: which slots are filled, and with which of their candidates.

    Ranks are those of the distribution that produced the current state. Position rank 0 is the surest masked slot of
    the first sub-block that has one; vocabulary rank 0 is a slot's likeliest token.

    Attributes:
        pairs: (position rank, vocabulary rank) of every slot that is filled beyond the current state, ascending.
        parents: the nodes one denoising step before it, ascending; none where that is the current state itself (main).
        fold_parent: the parent whose work a folded draft shares; None is main.
    """

    pairs: tuple[tuple[int, int], ...]
    parents: tuple[int, ...] = ()
    fold_parent: int | None = None


@dataclass(frozen=True)
class GraphKey:
    """What a draft graph was calibrated for.

    Attributes:
        model: fingerprint of the target.
        block_size: tokens of a block.
        sub_block: slots of a block are filled in runs of this width.
        strict: whether a token is accepted with confidence above the threshold; else at it, too.
        token_shift: whether the distribution of slot i comes from row i - 1 of the block.
        causal: whether committed tokens see only what stands before them.
        threshold: confidence at which a token is accepted.
    """

    model: str
    block_size: int
    sub_block: int
    strict: bool
    token_shift: bool
    causal: bool
    threshold: float

    def __post_init__(self) -> None:
        # 1 and 1.0 are equal but written differently, and equal graphs have one hash.
        object.__setattr__(self, "threshold", float(self.threshold))


@dataclass(frozen=True)
class DraftGraph:
    """Draft nodes, parents before children.

    Attributes:
        key: what it was calibrated for; None fits any model.
        nodes: the drafts. A node's level is the number of denoising steps that it is ahead of the current state; its
            parents are one level below it.

    Raises:
        InputError: there is no node, or a node is malformed or doesn't fit its parents or the block; it is named.
    """

    key: GraphKey | None
    nodes: tuple[DraftNode, ...]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise InputError("a draft graph needs at least one node")
        levels: list[int] = []
        found: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
        for index, node in enumerate(self.nodes):
            block_size = None if self.key is None else self.key.block_size
            fault = _fault_of_pairs(node, block_size) or _fault_of_parents(node, self.nodes[:index], levels)
            if fault:
                raise InputError(f"node {index}: {fault}")
            levels.append(_level(node, levels))
            first = found.setdefault((levels[index], node.pairs), index)
            if first != index:
                raise InputError(f"node {index}: is the same as node {first}")

    @property
    def budget(self) -> int:
        """Number of drafts."""
        return len(self.nodes)

    @property
    def levels(self) -> tuple[int, ...]:
        """The level of every node, from 1."""
        levels: list[int] = []
        for node in self.nodes:
            levels.append(_level(node, levels))
        return tuple(levels)

    @property
    def depth(self) -> int:
        """The highest level."""
        return max(self.levels)

    @property
    def position_ranks(self) -> int:
        """So many position ranks it takes: the highest, plus 1."""
        return 1 + max(position for node in self.nodes for position, _ in node.pairs)

    @property
    def vocabulary_ranks(self) -> int:
        """So many vocabulary ranks it takes: the highest, plus 1."""
        return 1 + max(token for node in self.nodes for _, token in node.pairs)

    @property
    def content_hash(self) -> str:
        """SHA-256 of its canonical JSON, in hex."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def check_graph(graph: DraftGraph, key: GraphKey, vocab_size: int, force: bool = False) -> None:
    """Refuse a graph that doesn't fit a model and the settings that it is decoded with.

    Args:
        graph: the graph.
        key: the model and the settings.
        vocab_size: tokens of the model's vocabulary, the mask included.
        force: take a graph that was made for others, too.

    Raises:
        InputError: its ranks reach beyond the block or the vocabulary, or it was made for others and isn't forced.
    """
    if graph.position_ranks > key.block_size:
        raise InputError(
            f"draft graph: position rank {graph.position_ranks - 1} is beyond a block of {key.block_size} tokens; "
            "calibrate a graph for this block size"
        )
    drafted = vocab_size - 1  # the mask is never drafted
    if graph.vocabulary_ranks > drafted:
        raise InputError(
            f"draft graph: vocabulary rank {graph.vocabulary_ranks - 1} is beyond the vocabulary of {drafted} tokens; "
            "calibrate a graph for this model"
        )
    if graph.key is None or force:
        return
    made, asked = dataclasses.asdict(graph.key), dataclasses.asdict(key)
    others = [f"{name} {shown(made[name])}, not {shown(asked[name])}" for name in made if made[name] != asked[name]]
    if others:
        raise InputError(
            f"the draft graph was made for {'; '.join(others)}: calibrate one for these settings, or force it"
        )


def fixed_graph(budget: int, depth: int) -> DraftGraph:
    """A graph without calibration: overlapping chains, in which every level fills one more slot by its likeliest token.

    Node m of level k fills the position ranks m to m + k - 1. The levels have as many nodes each, or one more in the
    lower ones; depth 1 makes `budget` siblings of one token.

    Raises:
        InputError: the depth isn't between 1 and the budget.
    """
    if not 1 <= depth <= budget:
        raise InputError(f"depth {depth} must be from 1 to the budget, which is {budget}")
    smallest, larger = divmod(budget, depth)
    nodes: list[DraftNode] = []
    below = range(0)
    for level in range(1, depth + 1):
        width = smallest + (level <= larger)
        for first in range(width):
            pairs = tuple((rank, 0) for rank in range(first, first + level))
            parents = tuple(below[first : first + 2])  # what fills all but the last slot, and all but the first
            nodes.append(DraftNode(pairs, parents, parents[0] if parents else None))
        below = range(len(nodes) - width, len(nodes))
    return DraftGraph(None, tuple(nodes))


def _level(node: DraftNode, levels: list[int]) -> int:
    """The level of a node, from those of the nodes before it."""
    return 1 + levels[node.parents[0]] if node.parents else 1


def _fault_of_pairs(node: DraftNode, block_size: int | None) -> str | None:
    """What is wrong with a node's pairs by themselves."""
    positions = [position for position, _ in node.pairs]
    if not node.pairs:
        return "has no pairs"
    if any(rank < 0 for pair in node.pairs for rank in pair):
        return "has a rank below 0"
    if len(set(positions)) < len(positions):
        return "fills a position rank twice"
    if list(node.pairs) != sorted(node.pairs):
        return "its pairs must be in ascending order"
    if block_size is not None and max(positions) >= block_size:
        return f"position rank {max(positions)} is beyond a block of {block_size} tokens"
    return None


def _fault_of_parents(node: DraftNode, earlier: tuple[DraftNode, ...], levels: list[int]) -> str | None:
    """What is wrong between a node and the nodes before it."""
    for parent in node.parents:
        if not 0 <= parent < len(earlier):
            return f"parent {parent} is no earlier node, so the graph has a cycle or a gap"
    if list(node.parents) != sorted(set(node.parents)):
        return "its parents must be in ascending order, each once"
    if len({levels[parent] for parent in node.parents}) > 1:
        return "its parents are at different levels, where all must be one below it"
    for parent in node.parents:
        if not set(earlier[parent].pairs) < set(node.pairs):
            return f"must have all pairs of its parent {parent}, and more"
    if node.fold_parent not in (node.parents or (None,)):
        return "its fold parent must be one of its parents, or null (main) where it has none"
    return None
