"""The oracle of multi-branch verification itself: on random models against vanilla, its rules on written states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import block_oracle
import numpy as np
import pytest
import spiffy_oracle
from block_oracle import KeysValues, Rules, Settings, Tensors, Trace
from random_decoder import random_decoder, small_config
from spiffy_oracle import Node, Speculation

VANILLA: dict[str, Callable[..., Trace]] = {
    "fast_dllm_v2": block_oracle.fast_dllm_v2,
    "nemotron": block_oracle.nemotron,
}
SPIFFY: dict[str, Callable[..., Speculation]] = {
    "fast_dllm_v2": spiffy_oracle.fast_dllm_v2,
    "nemotron": spiffy_oracle.nemotron,
}
each_family = pytest.mark.parametrize("family", VANILLA)

FIRST: Node = (1, [(0, 0)], [])
SECOND: Node = (1, [(1, 0)], [])
BOTH: Node = (1, [(0, 0), (1, 0)], [])


# Random models.

RANDOM_MASK, RANDOM_STOP = 39, 5
PROMPTS = [
    np.random.default_rng(seed).integers(0, RANDOM_MASK, length).tolist()
    for seed, length in enumerate([1, 5, 7, 8, 9, 16])
]
THRESHOLDS = [0.6, 0.9, 1.0]
GRAPHS: dict[str, list[Node]] = {
    "siblings": [FIRST, SECOND, BOTH],
    "chain": [(level, [(rank, 0) for rank in range(level)], [level - 2] if level > 1 else []) for level in range(1, 6)],
    "two parents": [FIRST, SECOND, (2, [(0, 0), (1, 0)], [0, 1])],
    "runners-up": [(1, [(0, 1)], []), (1, [(1, 1)], []), FIRST],
}


@cache
def random_model() -> tuple[Tensors, Settings]:
    """With a sharp head: random logits are so flat that no token would pass a threshold."""
    decoder = random_decoder(small_config())
    return decoder.tensors | {"lm_head.weight": 4 * decoder.tensors["lm_head.weight"]}, decoder.settings


def random_rules(threshold: float) -> Rules:
    return Rules(8, RANDOM_MASK, (RANDOM_STOP,), threshold, limit=21, sub_block=4)


@cache
def vanilla(family: str, threshold: float) -> list[Trace]:
    return [VANILLA[family](*random_model(), prompt, random_rules(threshold)) for prompt in PROMPTS]


def spiffy(family: str, threshold: float, graph: Sequence[Node], **options: Any) -> list[Speculation]:
    return [SPIFFY[family](*random_model(), prompt, random_rules(threshold), graph, **options) for prompt in PROMPTS]


@cache
def spiffy_by_name(family: str, threshold: float, graph: str, **options: Any) -> list[Speculation]:
    return spiffy(family, threshold, GRAPHS[graph], **options)


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("adopt", [True, False])
@each_family
def test_the_tokens_are_vanillas_and_every_accepted_draft_saves_a_forward(
    family: str, adopt: bool, graph: str, threshold: float
) -> None:
    """Commits included: an adopted draft is accepted like the others, and saves the commit."""
    plain = vanilla(family, threshold)
    drafted = spiffy_by_name(family, threshold, graph, adopt=adopt)
    assert [result.tokens for result in drafted] == [trace.tokens for trace in plain]
    assert [result.forwards + result.accepted for result in drafted] == [trace.forwards for trace in plain]
    assert sum(result.accepted for result in drafted) > 0, "no draft was ever accepted"


@pytest.mark.parametrize("threshold", THRESHOLDS)
@each_family
def test_adoption_saves_commits_alone(family: str, threshold: float) -> None:
    """All denoising is as without it, and a block has one commit."""
    saved = 0
    for graph in GRAPHS:
        adopting = spiffy_by_name(family, threshold, graph, adopt=True)
        plain = spiffy_by_name(family, threshold, graph, adopt=False)
        for prompt, ours, theirs in zip(PROMPTS, adopting, plain, strict=True):
            known = len(prompt) % 8 if family == "fast_dllm_v2" else 0  # of the first block
            commits = (known + len(ours.tokens) - 1) // 8
            assert 0 <= theirs.forwards - ours.forwards == ours.accepted - theirs.accepted <= commits
            saved += theirs.forwards - ours.forwards
    assert saved > 0


@each_family
def test_without_drafts_or_with_impossible_ones_it_is_vanilla(family: str) -> None:
    impossible: Node = (1, [(7, 0)], [])
    for graph in ([], [impossible]):
        for result, trace in zip(spiffy(family, 0.9, graph), vanilla(family, 0.9), strict=True):
            assert result == Speculation(trace.tokens, trace.steps, trace.forwards, (0,) * len(graph))


@each_family
def test_the_order_of_siblings_does_not_matter(family: str) -> None:
    forwards = [[r.forwards for r in spiffy(family, 0.9, graph)] for graph in ([FIRST, BOTH], [BOTH, FIRST])]
    assert forwards[0] == forwards[1]


# Written states. The prompt fills a block of 4, so the seed B stands at position 4 and masks at 5, 6, 7.

MASK, STOP, A, B, C, D, E, F, RIVAL = range(9)
RULES = Rules(block=4, mask_id=MASK, stop_ids=(STOP,), threshold=0.9, limit=5, sub_block=4)
PROMPT = [A] * 4
Answers = dict[int, tuple[int, float]]


class States:
    """A forward that answers by position, in one way for every text but those that are written down.

    The token of a position has a confidence from 0.5 to 1, the rival has the rest of it. In Fast-dLLM v2 the row before
    a position speaks for it. A last row speaks for the next block's seed, B.
    """

    def __init__(self, family: str, usual: Answers, written: dict[tuple[int, ...], Answers] | None = None) -> None:
        self.decode, self.shift = SPIFFY[family], int(family == "fast_dllm_v2")
        self.usual, self.written = usual, written or {}

    def __call__(
        self, tensors: Tensors, settings: Settings, tokens: Sequence[int], seen: np.ndarray
    ) -> tuple[np.ndarray, list[KeysValues]]:
        logits = np.full((len(tokens), RIVAL + 1), -np.inf, np.float32)
        logits[:, B] = 0.0
        for position, (token, confidence) in self.written.get(tuple(tokens[4:]), self.usual).items():
            if position < len(tokens) and MASK in tokens:
                row = position - self.shift
                logits[row] = -np.inf
                logits[row, RIVAL] = np.log1p(-confidence)
                logits[row, token] = np.log(confidence)
        return logits, []

    def run(self, graph: Sequence[Node], prompt: Sequence[int] = PROMPT, rules: Rules = RULES, **options: Any) -> Any:
        result = self.decode({}, {}, prompt, rules, graph, forward=self, **options)
        return result.tokens, result.forwards, result.hits


def one_by_one(family: str) -> States:
    """5, 7, 6. What the first state says ranks 6 before 7, what the second says ranks 7 before 6."""
    return States(
        family,
        {6: (D, 0.8)},
        {
            (B, MASK, MASK, MASK): {5: (C, 0.8), 6: (D, 0.7), 7: (E, 0.6)},
            (B, C, MASK, MASK): {6: (D, 0.6), 7: (E, 0.8)},
        },
    )


TOKENS = (B, C, D, E, B)
VANILLA_FORWARDS = 4


@each_family
def test_ranks_are_those_of_the_distribution_that_led_to_the_state(family: str) -> None:
    rules = replace(RULES, limit=4)
    assert one_by_one(family).run([FIRST, SECOND], rules=rules) == (TOKENS[:4], 2, (0, 1))


@pytest.mark.parametrize("adopt", [True, False])
@each_family
def test_a_complete_draft_is_the_commit_where_adoption_is_allowed(family: str, adopt: bool) -> None:
    graph = [FIRST, SECOND, (2, [(0, 0), (1, 0)], [0, 1])]
    expected = (TOKENS, VANILLA_FORWARDS - 1 - adopt, (0, 1, int(adopt)))
    assert one_by_one(family).run(graph, adopt=adopt) == expected


@pytest.mark.parametrize(("parents", "hit"), [([0], 0), ([1], 1), ([0, 1], 1)])
def test_a_child_is_accepted_only_after_a_parent(parents: list[int], hit: int) -> None:
    graph = [FIRST, SECOND, (2, [(0, 0), (1, 0)], parents)]
    assert one_by_one("fast_dllm_v2").run(graph) == (TOKENS, VANILLA_FORWARDS - 1 - hit, (0, 1, hit))


def test_a_node_of_the_first_level_is_not_accepted_after_another() -> None:
    assert one_by_one("fast_dllm_v2").run([SECOND, BOTH]) == (TOKENS, VANILLA_FORWARDS - 1, (1, 0))


@each_family
def test_a_runner_up_is_the_second_of_the_vocabulary(family: str) -> None:
    states = one_by_one(family)
    states.written[B, C, MASK, MASK] = {6: (D, 0.6), 7: (RIVAL, 0.8)}
    assert states.run([SECOND, (1, [(1, 1)], [])]) == ((B, C, D, RIVAL, B), VANILLA_FORWARDS - 1, (0, 1))


def two_at_once(family: str) -> States:
    """5, then 6 and 7."""
    return States(
        family, {6: (D, 0.95), 7: (E, 0.95)}, {(B, MASK, MASK, MASK): {5: (C, 0.8), 6: (D, 0.7), 7: (E, 0.6)}}
    )


def test_a_set_matches_a_step_of_that_set_alone() -> None:
    for family in SPIFFY:
        assert two_at_once(family).run([FIRST, SECOND, BOTH]) == (TOKENS, 2, (0, 0, 1))


def test_a_finished_text_accepts_nothing() -> None:
    """BOTH is the state in which the text ends, by the limit or by a stop id."""
    states = two_at_once("fast_dllm_v2")
    assert states.run([BOTH], rules=replace(RULES, limit=4)) == (TOKENS[:4], 2, (0,))
    assert states.run([BOTH], rules=replace(RULES, stop_ids=(E,))) == (TOKENS[:4], 2, (0,))


@each_family
def test_the_first_forward_of_a_block_has_no_drafts(family: str) -> None:
    """Each block takes one step and a commit, so that only a draft made before the step could save anything."""
    usual = {position: (C, 0.95) for position in range(5, 32) if position % 4}
    graph = [FIRST, SECOND, BOTH, (1, [(0, 0), (1, 0), (2, 0)], [])]
    assert States(family, usual).run(graph, rules=replace(RULES, limit=9)) == ((B, C, C, C) * 2 + (B,), 4, (0,) * 4)


def test_ranks_go_by_sub_block_first() -> None:
    """Sub-blocks of 2 in a block of 6 whose slot 0 is the prompt: 1, then 3 and 2, then 4 and 5."""
    states = States("fast_dllm_v2", {1: (B, 0.6), 2: (C, 0.6), 3: (D, 0.7), 4: (E, 0.85), 5: (F, 0.8)})
    rules = replace(RULES, block=6, sub_block=2)
    assert states.run(GRAPHS["chain"], [A], rules) == ((B, C, D, E, F), 2, (1, 1, 1, 0, 0))


def test_ranks_of_equal_confidence_go_by_slot() -> None:
    states = States("nemotron", {5: (C, 0.8), 6: (D, 0.7), 7: (E, 0.7)})
    assert states.run([SECOND, FIRST]) == (TOKENS, VANILLA_FORWARDS - 1, (0, 1))
