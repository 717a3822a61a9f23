"""Multi-branch verification (Spiffy) in plain numpy float32: the truth for tests of drafting and of accepting drafts.

Nothing here comes from the product. One text at a time, greedy and without a cache. A draft's rows see the text and the
draft's own block alone, so what they say is what a forward of the text with that block in it says; it is worked out
only where the draft is accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from block_oracle import (
    Family,
    FastDLLMv2,
    Forward,
    Nemotron,
    Rules,
    Settings,
    Tensors,
    Trace,
    _softmax,
    _Text,
    forward,
)

Node = tuple[int, Sequence[tuple[int, int]], Sequence[int]]
"""Level from 1 on, (position rank, vocabulary rank) pairs, and the parents' indices (none at level 1)."""
Draft = list[int] | None
"""A whole text, or nothing where the state has too few masks for the node."""


@dataclass(frozen=True)
class Speculation(Trace):
    """What decoding gave. A forward is one of the main state and all of its drafts.

    Attributes:
        hits: for each node how often it was accepted.
        ways: (node or None, node): how often the second was accepted right after the first, or after the main state.
    """

    hits: tuple[int, ...]
    ways: Counter[tuple[int | None, int]] = field(default_factory=Counter)

    @property
    def accepted(self) -> int:
        return sum(self.hits)


def fast_dllm_v2(
    tensors: Tensors,
    settings: Settings,
    prompt: Sequence[int],
    rules: Rules,
    graph: Sequence[Node],
    adopt: bool = True,
    forward: Forward = forward,
) -> Speculation:
    """Fast-dLLM v2. A complete draft that is accepted is its block's commit; without `adopt` none is accepted."""
    return _speculate(FastDLLMv2(tensors, settings, rules, forward), prompt, graph, adopt)


def nemotron(
    tensors: Tensors,
    settings: Settings,
    prompt: Sequence[int],
    rules: Rules,
    graph: Sequence[Node],
    adopt: bool = True,
    forward: Forward = forward,
) -> Speculation:
    """Nemotron-Labs-Diffusion. A complete draft sees causally, as its block's commit does, and so can be that."""
    return _speculate(Nemotron(tensors, settings, rules, forward), prompt, graph, adopt)


def _speculate(family: Family, prompt: Sequence[int], graph: Sequence[Node], adopt: bool) -> Speculation:
    """Go from state to state as vanilla does. A state is an accepted draft of the last forward, or costs a forward."""
    text = family.begin(prompt)
    hits = [0] * len(graph)
    ways: Counter[tuple[int | None, int]] = Counter()
    logits = None  # of the state before this one; a block's first state has none before it
    nothing: list[Draft] = [None] * len(graph)
    drafts = nothing  # of the last forward
    accepted = None  # the node accepted last since that forward; none is the main state
    while not text.finished():
        before, accepted = accepted, _matching(graph, drafts, accepted, text.tokens)
        if accepted is not None:
            hits[accepted] += 1
            ways[before, accepted] += 1
        else:
            text.forwards += 1
            drafts = nothing if logits is None else _drafts(family, graph, text, logits, adopt)
        complete = len(text.masked()) == 0
        logits = family.logits(text)
        family.advance(text, logits)
        if complete:
            logits, drafts = None, nothing
    trace = text.trace()
    return Speculation(trace.tokens, trace.steps, trace.forwards, tuple(hits), ways)


def _matching(graph: Sequence[Node], drafts: Sequence[Draft], accepted: int | None, tokens: list[int]) -> int | None:
    """The first child of the accepted node (or of the main state) whose draft is this very text."""
    for index, ((level, _, parents), draft) in enumerate(zip(graph, drafts, strict=True)):
        child = level == 1 if accepted is None else accepted in parents
        if child and draft == tokens:
            return index
    return None


def _drafts(family: Family, graph: Sequence[Node], text: _Text, logits: np.ndarray, adopt: bool) -> list[Draft]:
    """Every node's draft of a state, ranked by the logits that led to this state."""
    masked = text.masked()
    spoken = logits[family.speakers(masked)]
    confidence = _softmax(spoken).max(axis=-1)
    order = np.lexsort((masked, -confidence, family.sub_blocks(masked)))
    ranked = [row[row != family.rules.mask_id] for row in np.argsort(-spoken, axis=-1, kind="stable")]

    def draft(pairs: Sequence[tuple[int, int]]) -> Draft:
        if any(position >= len(masked) for position, _ in pairs) or (len(pairs) == len(masked) and not adopt):
            return None
        tokens = list(text.tokens)
        for position, vocabulary in pairs:
            slot = order[position]
            tokens[masked[slot]] = int(ranked[slot][vocabulary])
        return tokens

    return [draft(pairs) for _, pairs, _ in graph]
