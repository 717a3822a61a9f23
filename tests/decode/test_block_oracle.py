"""The oracle of block diffusion itself: its forward against the float64 oracle, its rules against scripted forwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import oracle
import pytest
from block_oracle import (
    KeysValues,
    Rules,
    Settings,
    Tensors,
    Trace,
    autoregressive,
    block_after_prefix,
    block_causal,
    causal,
    fast_dllm_v2,
    forward,
    linear_speculation,
    nemotron,
)

# The vocabulary of the scripted tests. A tie is won by the lower id, so the rival comes last.
MASK, STOP, WRONG, A, B, C, D, E, F, G, RIVAL = range(11)
RULES = Rules(block=4, mask_id=MASK, stop_ids=(STOP,), threshold=0.9, limit=100, sub_block=4)

Decode = Callable[..., Trace]
Answers = dict[int, tuple[int, float]]
FAMILIES: dict[str, Decode] = {"fast_dllm_v2": fast_dllm_v2, "nemotron": nemotron}
each_family = pytest.mark.parametrize("family", FAMILIES)


class Script:
    """A forward that gives written answers: for each call the token and the confidence (0.5 to 1) of some rows.

    All other rows are sure of WRONG.
    """

    def __init__(self, *answers: Answers) -> None:
        self.answers = answers
        self.calls: list[tuple[list[int], np.ndarray]] = []

    def __call__(
        self, tensors: Tensors, settings: Settings, tokens: Sequence[int], seen: np.ndarray
    ) -> tuple[np.ndarray, list[KeysValues]]:
        assert len(self.calls) < len(self.answers), "more forwards than the script has"
        assert seen.shape == (len(tokens), len(tokens))
        answers = self.answers[len(self.calls)]
        self.calls.append((list(tokens), seen))
        logits = np.full((len(tokens), RIVAL + 1), -np.inf, np.float32)
        logits[:, WRONG] = 0.0
        for row, (token, confidence) in answers.items():
            logits[row] = -np.inf
            logits[row, RIVAL] = np.log1p(-confidence)
            logits[row, token] = np.log(confidence)
        return logits, []

    def decode(self, decode: Decode, prompt: Sequence[int], rules: Rules) -> Trace:
        """Decode, and see that the whole script was used."""
        trace = decode({}, {}, prompt, rules, self)
        assert len(self.calls) == len(self.answers), "fewer forwards than the script has"
        return trace


PROMPT = [A] * 4
LAST_ROW = -1


def seed(token: int) -> Answers:
    """The answer of a prefill or commit forward: what its last row says comes next."""
    return {LAST_ROW: (token, 0.6)}


def step(family: str, slots: Answers) -> Answers:
    """The answer of a denoising forward, given by position. In Fast-dLLM v2 the row before a slot speaks for it."""
    shift = 1 if family == "fast_dllm_v2" else 0
    return {position - shift: answer for position, answer in slots.items()}


def random_model(
    seed: int = 0, *, biases: bool = False, head_norms: bool = False, tied: bool = False, **settings: Any
) -> tuple[Tensors, Settings]:
    """Two layers, 24 wide, with two key/value heads, in which every weight is random and matters."""
    generator = np.random.default_rng(seed)
    hidden, inner, vocab, heads, kv_heads, head_dim = 24, 36, settings.pop("vocab", 40), 4, 2, 8
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (vocab, hidden), "model.norm": (hidden,)}
    if not tied:
        shapes["lm_head"] = (vocab, hidden)
    for layer in range(2):
        name = f"model.layers.{layer}"
        shapes |= {
            f"{name}.input_layernorm": (hidden,),
            f"{name}.post_attention_layernorm": (hidden,),
            f"{name}.self_attn.q_proj": (heads * head_dim, hidden),
            f"{name}.self_attn.k_proj": (kv_heads * head_dim, hidden),
            f"{name}.self_attn.v_proj": (kv_heads * head_dim, hidden),
            f"{name}.self_attn.o_proj": (hidden, heads * head_dim),
            f"{name}.mlp.gate_proj": (inner, hidden),
            f"{name}.mlp.up_proj": (inner, hidden),
            f"{name}.mlp.down_proj": (hidden, inner),
        }
        if head_norms:
            shapes |= {f"{name}.self_attn.q_norm": (head_dim,), f"{name}.self_attn.k_norm": (head_dim,)}

    tensors = {}
    for name, shape in shapes.items():
        values = generator.standard_normal(shape, np.float32)
        tensors[f"{name}.weight"] = 1 + 0.3 * values if len(shape) == 1 else values * np.float32(hidden**-0.5)
        if biases and name.endswith("_proj"):
            tensors[f"{name}.bias"] = 0.3 * generator.standard_normal(shape[0], np.float32)
    settings |= {
        "layers": 2,
        "heads": heads,
        "kv_heads": kv_heads,
        "eps": 1e-5,
        "inverse_frequencies": tuple(100.0 ** -(i / 4) for i in range(head_dim // 2)),
    }
    return tensors, settings


def random_prompt(length: int, seed: int = 0, vocab: int = 40) -> list[int]:
    """Ids without the mask 0."""
    return np.random.default_rng(seed).integers(1, vocab, length).tolist()


# The forward.

PATTERNS = {"causal": causal(11), "block-causal": block_causal(11, 4), "block": block_after_prefix(5, 6)}


def test_patterns() -> None:
    np.testing.assert_array_equal(causal(7), oracle.causal(7))
    np.testing.assert_array_equal(block_causal(7, 3), oracle.block_causal(7, 3))
    np.testing.assert_array_equal(block_after_prefix(3, 4), oracle.block_after_prefix(3, 4))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"biases": True},
        {"head_norms": True, "tied": True},
        {"attention_factor": 1.1, "query_scale_beta": 0.3, "original_max_position": 4},
    ],
    ids=lambda changes: ", ".join(changes) or "plain",
)
@pytest.mark.parametrize("seen", PATTERNS.values(), ids=PATTERNS)
def test_forward(changes: dict[str, Any], seen: np.ndarray) -> None:
    tensors, settings = random_model(**changes)
    tokens = random_prompt(11)
    logits, cache = forward(tensors, settings, tokens, seen)
    truth, _ = oracle.forward(tensors, settings, tokens, seen)
    assert np.abs(truth).max() > 0.5, "too small to tell anything"
    np.testing.assert_allclose(logits, truth, atol=2e-5)
    assert logits.dtype == np.float32
    assert [part.shape for layer in cache for part in layer] == [(11, 2, 8)] * 4
    assert all(part.dtype == np.float32 for layer in cache for part in layer)


@pytest.mark.parametrize(
    ("before", "after"),
    [(block_causal(8, 4), block_causal(12, 4)), (causal(8), block_after_prefix(8, 4)), (causal(8), causal(12))],
    ids=["block-causal", "causal, then a block", "causal"],
)
def test_what_is_committed_stays(before: np.ndarray, after: np.ndarray) -> None:
    tensors, settings = random_model()
    tokens = random_prompt(12)
    _, committed = forward(tensors, settings, tokens[:8], before)
    _, followed = forward(tensors, settings, tokens, after)
    for first, second in zip(committed, followed, strict=True):
        for ours, theirs in zip(first, second, strict=True):
            np.testing.assert_allclose(ours, theirs[:8], atol=1e-5)


def test_bidirectional_keys_and_values_are_not_the_causal_ones() -> None:
    tensors, settings = random_model()
    tokens = random_prompt(20)
    _, bidirectional = forward(tensors, settings, tokens, block_after_prefix(12, 8))
    _, one_way = forward(tensors, settings, tokens, causal(20))
    for part in range(2):
        np.testing.assert_array_equal(bidirectional[0][part], one_way[0][part])
        np.testing.assert_allclose(bidirectional[1][part][:12], one_way[1][part][:12], atol=1e-5)
        differences = np.abs(bidirectional[1][part] - one_way[1][part])[12:19].max(axis=(1, 2))
        assert differences.min() > 1e-2, "all but the last row see more than before"


# What both families share. PROMPT fills a block, so both have their seed at position 4 and masks at 5, 6, 7.


@each_family
def test_the_most_confident_slot_is_released_in_any_case(family: str) -> None:
    steps = Script(
        seed(B),
        step(family, {5: (C, 0.6), 6: (D, 0.8), 7: (E, 0.7)}),
        step(family, {5: (C, 0.7), 7: (F, 0.8)}),
        step(family, {5: (G, 0.5)}),
    )
    assert steps.decode(FAMILIES[family], PROMPT, replace(RULES, limit=4)) == Trace((B, G, D, F), (0, 3, 1, 2), 3)


@each_family
def test_of_equal_slots_the_first_is_released(family: str) -> None:
    steps = Script(
        seed(B),
        step(family, {5: (C, 0.6), 6: (D, 0.8), 7: (E, 0.8)}),
        step(family, {5: (C, 0.8), 7: (F, 0.8)}),
        step(family, {7: (G, 0.8)}),
    )
    assert steps.decode(FAMILIES[family], PROMPT, replace(RULES, limit=4)) == Trace((B, C, D, G), (0, 2, 1, 3), 3)


@each_family
def test_every_slot_past_the_threshold_is_released(family: str) -> None:
    steps = Script(
        seed(B),
        step(family, {5: (C, 0.95), 6: (D, 0.85), 7: (E, 0.91)}),
        step(family, {6: (F, 0.5)}),
    )
    assert steps.decode(FAMILIES[family], PROMPT, replace(RULES, limit=4)) == Trace((B, C, F, E), (0, 1, 2, 1), 2)


def test_a_confidence_equal_to_the_threshold_counts_in_nemotron_alone() -> None:
    rules = replace(RULES, threshold=0.5, limit=4)
    slots = {5: (C, 0.5), 6: (D, 0.5), 7: (E, 0.8)}
    at_once = Script(seed(B), step("nemotron", slots))
    assert at_once.decode(nemotron, PROMPT, rules) == Trace((B, C, D, E), (0, 1, 1, 1), 1)
    one_by_one = Script(
        seed(B),
        step("fast_dllm_v2", slots),
        step("fast_dllm_v2", {5: (F, 0.5), 6: (G, 0.5)}),
        step("fast_dllm_v2", {6: (G, 0.5)}),
    )
    assert one_by_one.decode(fast_dllm_v2, PROMPT, rules) == Trace((B, F, G, E), (0, 2, 3, 1), 3)


@each_family
def test_the_mask_is_never_proposed(family: str) -> None:
    """Without the mask the rival is certain, so all slots are released."""
    steps = Script(seed(MASK), step(family, dict.fromkeys((5, 6, 7), (MASK, 0.9))), seed(MASK))
    trace = steps.decode(FAMILIES[family], PROMPT, replace(RULES, limit=5))
    assert trace == Trace((RIVAL,) * 5, (0, 1, 1, 1, 2), 2)


@each_family
def test_blocks_commits_and_what_they_see(family: str) -> None:
    steps = Script(
        seed(B),
        step(family, {5: (C, 0.95), 6: (D, 0.95), 7: (E, 0.95)}),
        seed(F),
        step(family, {9: (C, 0.95), 10: (D, 0.5), 11: (G, 0.95)}),
        step(family, {10: (D, 0.5)}),
        seed(A),
    )
    trace = steps.decode(FAMILIES[family], PROMPT, replace(RULES, limit=9))
    assert trace == Trace((B, C, D, E, F, C, D, G, A), (0, 1, 1, 1, 2, 3, 4, 3, 5), 5)
    assert [tokens for tokens, _ in steps.calls] == [
        PROMPT,
        [*PROMPT, B, MASK, MASK, MASK],
        [*PROMPT, B, C, D, E],
        [*PROMPT, B, C, D, E, F, MASK, MASK, MASK],
        [*PROMPT, B, C, D, E, F, C, MASK, G],
        [*PROMPT, B, C, D, E, F, C, D, G],
    ]
    if family == "fast_dllm_v2":
        patterns = [oracle.block_causal(rows, 4) for rows in (4, 8, 8, 12, 12, 12)]
    else:
        denoising = [oracle.block_after_prefix(prefix, 4) for prefix in (4, 8)]
        patterns = [causal(4), denoising[0], causal(8), denoising[1], denoising[1], causal(12)]
    for (_, seen), pattern in zip(steps.calls, patterns, strict=True):
        np.testing.assert_array_equal(seen, pattern)


@each_family
def test_a_stop_id_counts_without_a_mask_before_it(family: str) -> None:
    steps = Script(
        seed(B),
        step(family, {5: (C, 0.7), 6: (STOP, 0.95), 7: (E, 0.6)}),
        step(family, {5: (C, 0.7), 7: (E, 0.8)}),
        step(family, {5: (D, 0.5)}),
    )
    assert steps.decode(FAMILIES[family], PROMPT, RULES) == Trace((B, D, STOP), (0, 3, 1), 3)


@each_family
def test_a_stop_id_with_a_mask_after_it_ends_the_text(family: str) -> None:
    steps = Script(seed(B), step(family, {5: (STOP, 0.95), 6: (D, 0.5), 7: (E, 0.95)}))
    assert steps.decode(FAMILIES[family], PROMPT, RULES) == Trace((B, STOP), (0, 1), 1)


@each_family
def test_a_stop_id_as_seed(family: str) -> None:
    assert Script(seed(STOP)).decode(FAMILIES[family], PROMPT, RULES) == Trace((STOP,), (0,), 0)
    sure = step(family, {5: (C, 0.95), 6: (D, 0.95), 7: (E, 0.95)})
    trace = Script(seed(B), sure, seed(STOP)).decode(FAMILIES[family], PROMPT, RULES)
    assert trace == Trace((B, C, D, E, STOP), (0, 1, 1, 1, 2), 2)


@each_family
def test_a_stop_id_in_the_prompt_is_none(family: str) -> None:
    prompt = [A, A, A, STOP]
    assert Script(seed(B)).decode(FAMILIES[family], prompt, replace(RULES, limit=1)) == Trace((B,), (0,), 0)


@each_family
@pytest.mark.parametrize("limit", [2, 3])
def test_a_limit_inside_a_block(family: str, limit: int) -> None:
    """The canvas is whole, and slots past the limit are released like the others."""
    steps = Script(
        seed(B),
        step(family, {5: (C, 0.6), 6: (D, 0.6), 7: (E, 0.8)}),
        step(family, {5: (C, 0.6), 6: (F, 0.8)}),
        step(family, {5: (G, 0.6)}),
    )
    trace = steps.decode(FAMILIES[family], PROMPT, replace(RULES, limit=limit))
    assert trace == Trace((B, G, F)[:limit], (0, 3, 2)[:limit], 3)
    assert [len(tokens) for tokens, _ in steps.calls] == [4, 8, 8, 8]


@each_family
def test_masks_past_the_limit_stay(family: str) -> None:
    steps = Script(seed(B), step(family, {5: (C, 0.95), 6: (D, 0.6), 7: (E, 0.95)}))
    assert steps.decode(FAMILIES[family], PROMPT, replace(RULES, limit=2)) == Trace((B, C), (0, 1), 1)


@each_family
def test_a_limit_of_one_is_the_seed(family: str) -> None:
    assert Script(seed(B)).decode(FAMILIES[family], PROMPT, replace(RULES, limit=1)) == Trace((B,), (0,), 0)


@each_family
def test_a_stop_id_past_the_limit_is_cut(family: str) -> None:
    steps = Script(seed(B), step(family, {5: (C, 0.95), 6: (STOP, 0.95), 7: (E, 0.95)}))
    assert steps.decode(FAMILIES[family], PROMPT, replace(RULES, limit=2)) == Trace((B, C), (0, 1), 1)


@each_family
@pytest.mark.parametrize("length", [1, 31, 32, 33, 64])
def test_the_whole_prompt_is_seen(family: str, length: int) -> None:
    tensors, settings = random_model()
    prompt = random_prompt(length)
    calls: list[tuple[list[int], np.ndarray]] = []

    def recorded(*call: Any) -> tuple[np.ndarray, list[KeysValues]]:
        calls.append((list(call[2]), call[3]))
        return forward(*call)

    rules = Rules(block=32, mask_id=0, stop_ids=(), threshold=0.9, limit=34)
    trace = FAMILIES[family](tensors, settings, prompt, rules, recorded)
    assert len(trace.tokens) == len(trace.steps) == 34
    assert 0 not in trace.tokens
    for tokens, seen in calls:
        assert tokens[:length] == prompt
        assert seen[-1, :length].all()
    prefills = [tokens for tokens, _ in calls if tokens == prompt]
    assert len(prefills) == (family == "nemotron" or length % 32 == 0)
    assert len(calls) == len(prefills) + trace.forwards


@each_family
def test_a_prompt_of_exactly_one_block_matters(family: str) -> None:
    """Also the part of it that the first new token's row only sees through attention."""
    tensors, settings = random_model()
    rules = Rules(block=32, mask_id=0, stop_ids=(), threshold=0.9, limit=1)
    prompts = [[*random_prompt(31, number), 1] for number in range(20)]
    assert len({FAMILIES[family](tensors, settings, prompt, rules).tokens for prompt in prompts}) > 1


# Fast-dLLM v2 alone.


def test_the_row_before_a_slot_speaks_for_it() -> None:
    """Rows 4 to 6 give slots 5 to 7; what row 7 says counts only after the commit forward."""
    sure = {4: (C, 0.95), 5: (D, 0.95), 6: (E, 0.95), 7: (F, 0.95)}
    shifted = Script(seed(B), sure, {7: (G, 0.6)})
    assert shifted.decode(fast_dllm_v2, PROMPT, replace(RULES, limit=5)).tokens == (B, C, D, E, G)
    straight = Script(seed(B), sure, {7: (G, 0.6)})
    assert straight.decode(nemotron, PROMPT, replace(RULES, limit=5)).tokens == (B, D, E, F, G)


def test_the_rest_of_the_prompt_starts_the_first_block() -> None:
    """Five tokens are a block and one more: no seed, and the first commit comes after the third slot."""
    steps = Script({4: (B, 0.95), 5: (C, 0.95), 6: (D, 0.95)}, seed(E))
    trace = steps.decode(fast_dllm_v2, [*PROMPT, A], replace(RULES, limit=4))
    assert trace == Trace((B, C, D, E), (1, 1, 1, 2), 2)
    assert [tokens for tokens, _ in steps.calls] == [[*PROMPT, A, MASK, MASK, MASK], [*PROMPT, A, B, C, D]]


def test_sub_blocks_go_from_left_to_right() -> None:
    """In a block of 4 with sub-blocks of 2 a sure slot waits until the sub-blocks before its own are done."""
    steps = Script(
        {0: (B, 0.6), 1: (C, 0.99), 2: (D, 0.99)},
        {1: (E, 0.7), 2: (F, 0.8)},
        {1: (G, 0.6)},
    )
    trace = steps.decode(fast_dllm_v2, [A], replace(RULES, limit=3, sub_block=2))
    assert trace == Trace((B, G, F), (1, 3, 2), 3)


def test_nemotron_has_no_sub_blocks() -> None:
    steps = Script(seed(B), step("nemotron", {5: (C, 0.95), 6: (D, 0.95), 7: (E, 0.95)}))
    assert steps.decode(nemotron, PROMPT, replace(RULES, limit=4, sub_block=2)).forwards == 1


@pytest.mark.parametrize(("length", "first"), [(1, 4), (8, 3), (31, 1), (32, 4), (33, 4)])
def test_forwards_of_fast_dllm_v2(length: int, first: int) -> None:
    """Where everything is sure a sub-block of 8 with masks costs one forward, and a block one more for its commit."""
    tensors, settings = random_model()
    two_blocks_and_a_half = (-length % 32 or 32) + 32 + 16
    rules = Rules(block=32, mask_id=0, stop_ids=(), threshold=1e-9, limit=two_blocks_and_a_half)
    assert fast_dllm_v2(tensors, settings, random_prompt(length), rules).forwards == first + 1 + 4 + 1 + 2


def test_threshold_one_fixes_one_token_a_forward() -> None:
    tensors, settings = random_model()
    rules = Rules(block=8, mask_id=0, stop_ids=(), threshold=1.0, limit=24, sub_block=4)
    for decode in (fast_dllm_v2, nemotron):
        trace = decode(tensors, settings, random_prompt(8), rules)
        assert sorted(trace.steps) == list(range(24))
    assert nemotron(tensors, settings, random_prompt(8), rules).steps != tuple(range(24)), "the order is by confidence"


# Nemotron-Labs-Diffusion alone.


@pytest.mark.parametrize("length", [1, 3, 5])
def test_blocks_follow_the_prompt_without_alignment(length: int) -> None:
    end = length + 4
    sure = {length + slot: (token, 0.95) for slot, token in enumerate((WRONG, C, D, E))}
    steps = Script(seed(B), sure, seed(F))
    assert steps.decode(nemotron, [A] * length, replace(RULES, limit=5)) == Trace((B, C, D, E, F), (0, 1, 1, 1, 2), 2)
    np.testing.assert_array_equal(steps.calls[1][1], oracle.block_after_prefix(length, 4))
    np.testing.assert_array_equal(steps.calls[2][1], oracle.causal(end))


# Autoregressive decoding and linear self-speculation.


def test_autoregressive() -> None:
    steps = Script(seed(B), seed(MASK), seed(STOP))
    assert steps.decode(autoregressive, [A], RULES) == Trace((B, RIVAL, STOP), (0, 1, 2), 2)
    assert [tokens for tokens, _ in steps.calls] == [[A], [A, B], [A, B, RIVAL]]
    for rows, (_, seen) in enumerate(steps.calls, 1):
        np.testing.assert_array_equal(seen, oracle.causal(rows))


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_drafts_are_accepted_up_to_the_first_that_differs(accepted: int) -> None:
    drafts = (C, D, E)
    choices = [*drafts, F]
    if accepted < 3:
        choices[accepted] = G
    steps = Script(
        seed(B),
        {2: (C, 0.6), 3: (D, 0.6), 4: (E, 0.6)},
        {row: (token, 0.6) for row, token in enumerate(choices, 1)},
    )
    trace = steps.decode(linear_speculation, [A], replace(RULES, limit=accepted + 2))
    assert trace == Trace((B, *choices[: accepted + 1]), (0, *[2] * (accepted + 1)), 2)
    assert [tokens for tokens, _ in steps.calls] == [[A], [A, B, MASK, MASK, MASK], [A, B, C, D, E]]
    np.testing.assert_array_equal(steps.calls[1][1], oracle.block_after_prefix(1, 4))
    np.testing.assert_array_equal(steps.calls[2][1], oracle.causal(5))


def test_the_bonus_is_the_next_seed() -> None:
    steps = Script(seed(B), {2: (C, 0.6)}, {1: (C, 0.6), 2: (G, 0.6)}, {4: (D, 0.6)}, {3: (STOP, 0.6)})
    assert steps.decode(linear_speculation, [A], RULES) == Trace((B, C, G, STOP), (0, 2, 2, 4), 4)
    assert steps.calls[3][0] == [A, B, C, G, MASK, MASK, MASK]


def test_linear_speculation_is_autoregressive_decoding() -> None:
    saved = 0
    for number in range(20):
        tensors, settings = random_model(number, vocab=8)
        rules = Rules(block=8, mask_id=0, stop_ids=(1 + number % 7,), threshold=0.9, limit=21)
        prompt = random_prompt(1 + number, number, vocab=8)
        plain = autoregressive(tensors, settings, prompt, rules)
        speculative = linear_speculation(tensors, settings, prompt, rules)
        assert speculative.tokens == plain.tokens
        assert plain.steps == tuple(range(len(plain.tokens)))
        saved += 2 * plain.forwards - speculative.forwards
    assert saved > 0, "no draft was ever accepted"


@pytest.mark.parametrize("decode", [fast_dllm_v2, nemotron, autoregressive, linear_speculation])
@pytest.mark.parametrize("prompt", [[], [A, MASK]])
def test_bad_prompts(decode: Decode, prompt: list[int]) -> None:
    with pytest.raises(AssertionError, match="prompt"):
        Script().decode(decode, prompt, RULES)
