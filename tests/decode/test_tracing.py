"""Traces of vanilla decoding, against states and distributions of the block oracle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import block_oracle
import numpy as np
import pytest
from diffusion_models import (
    BLOCK,
    FAMILIES,
    MASK,
    SUB_BLOCK,
    diffusion_decoder,
    diffusion_model,
    oracle_rules,
    random_prompts,
)

from specdiff_jax.calibration import BlockTrace
from specdiff_jax.decode.methods import Vanilla
from specdiff_jax.decode.requests import make_requests, row_keys
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.decode.tracing import traced

LIMIT, RANKS, ROWS, THRESHOLD = 21, 3, 12, 0.9
PROMPTS = random_prompts(ROWS - 1, 24, seed=4)  # and a row that only fills the batch
ORACLES = {"fast_dllm_v2": block_oracle.FastDLLMv2, "nemotron_labs_diffusion": block_oracle.Nemotron}
each_family = pytest.mark.parametrize("family", FAMILIES)


def trace(family: str, prompts: Sequence[Sequence[int]], threshold: float = THRESHOLD) -> list[BlockTrace]:
    model = diffusion_model(family)
    asked = make_requests(model, prompts, ROWS, row_keys(0, len(prompts)), LIMIT, sampling(0.0, 1.0, 0, 40))
    return list(traced(model, asked, Vanilla(threshold, sub_block=SUB_BLOCK[family]), LIMIT, RANKS))


@cache
def all_traces(family: str) -> list[BlockTrace]:
    return trace(family, PROMPTS)


Step = tuple[list[int], np.ndarray, np.ndarray]
"""A state, its masked slots, and the logits that speak for them."""


def oracle_blocks(family: str, prompt: Sequence[int]) -> list[tuple[list[Step], list[int]]]:
    """Each block's denoising steps and the state after the last of them."""
    decoder = diffusion_decoder(family)
    oracle = ORACLES[family](decoder.tensors, decoder.settings, oracle_rules(family, THRESHOLD, LIMIT))
    text = oracle.begin(prompt)
    blocks: list[tuple[list[Step], list[int]]] = []
    steps: list[Step] = []
    while not text.finished():
        masked, state = text.masked(), text.tokens[-BLOCK:]
        logits = oracle.logits(text)
        text.forwards += 1
        oracle.advance(text, logits)
        if len(masked) > 0:
            steps.append((state, masked - (len(text.tokens) - BLOCK), logits[oracle.speakers(masked)]))
        else:
            blocks.append((steps, state))
            steps = []
    return [*blocks, (steps, text.tokens[-BLOCK:])] if steps else blocks


@each_family
def test_traces_equal_the_oracle(family: str) -> None:
    expected = [block for prompt in PROMPTS for block in oracle_blocks(family, prompt)]
    found = all_traces(family)
    assert len(found) == len(expected)
    for ours, (steps, last) in zip(found, expected, strict=True):
        assert ours.states.tolist() == [*(state for state, _, _ in steps), last]
        assert len(ours.confidence) == len(ours.ranked) == len(steps)
        for confidence, ranked, (_, masked, logits) in zip(ours.confidence, ours.ranked, steps, strict=True):
            shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
            shares /= shares.sum(axis=-1, keepdims=True)
            np.testing.assert_allclose(confidence[masked], shares.max(axis=-1), rtol=1e-4)
            assert ranked[masked].tolist() == np.argsort(-logits, axis=-1)[:, :RANKS].tolist()


@each_family
def test_a_trace_is_one_block_from_its_first_state_until_it_is_full(family: str) -> None:
    """Commits belong to no trace; a text may end before its last block is full."""
    ended = 0
    for block in all_traces(family):
        masks = (block.states == MASK).sum(axis=1)
        assert (np.diff(masks) < 0).all()
        for before, after in zip(block.states, block.states[1:], strict=False):
            fixed = before != MASK
            assert after[fixed].tolist() == before[fixed].tolist()
        ended += masks[-1] > 0
    assert 0 <= ended <= len(PROMPTS)
    assert len(all_traces(family)) > len(PROMPTS)


@each_family
def test_a_row_is_traced_in_a_batch_as_alone(family: str) -> None:
    alone = [block for prompt in PROMPTS[:5] for block in trace(family, [prompt])]
    for ours, theirs in zip(all_traces(family), alone, strict=False):
        assert ours.states.tolist() == theirs.states.tolist()
        np.testing.assert_allclose(ours.confidence, theirs.confidence, rtol=1e-5)


@each_family
def test_another_threshold_gives_other_traces(family: str) -> None:
    assert all((np.diff((block.states == MASK).sum(axis=1)) == -1).all() for block in trace(family, PROMPTS, 1.0))
    assert any((np.diff((block.states == MASK).sum(axis=1)) < -1).any() for block in trace(family, PROMPTS, 0.4))
