"""Several continuations of one cache in one forward, against the oracle that reads each as a text of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import folded_oracle
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from flax import nnx
from random_decoder import CONFIGS, RandomDecoder, random_decoder

from specdiff_jax.model import KVCache, empty_cache
from specdiff_jax.model.decoder import BranchOutput, DecoderOutput

TOLERANCE = 1e-5
LENGTHS, CAPACITY, BRANCHES, SLOTS = (9, 3, 0), 16, 3, 4
WHOLE = np.full((len(LENGTHS), BRANCHES, SLOTS), SLOTS)
CAUSAL = np.broadcast_to(np.arange(1, SLOTS + 1), WHOLE.shape)
GARBAGE = 1e4
NAMES = ["biases", "head norms, tied", "query scale"]
each_config = pytest.mark.parametrize("name", NAMES)

generator = np.random.default_rng(5)
TEXTS = generator.integers(0, 40, (len(LENGTHS), max(LENGTHS)))
TOKENS = generator.integers(0, 40, WHOLE.shape)


def filled_cache(model: RandomDecoder, fill: float = GARBAGE) -> KVCache:
    """Each row's own text, and garbage behind it."""
    cache = empty_cache(model.config, len(LENGTHS), CAPACITY, jnp.float32)
    read = model.run(TEXTS, cache).cache
    assert read is not None
    behind = (np.arange(CAPACITY) >= np.array(LENGTHS)[:, None])[:, None, :, None]
    spoilt = jax.tree.map(lambda array: jnp.where(behind, fill, array) if array.ndim > 1 else array, read)
    return spoilt.with_lengths(jnp.array(LENGTHS))


@partial(jax.jit, static_argnums=0)
def _branches(
    graphdef: nnx.GraphDef, params: nnx.State, tokens: jax.Array, cache: KVCache, visible: jax.Array
) -> tuple[BranchOutput, jax.Array]:
    decoder = nnx.merge(graphdef, params)
    output = decoder.branches(tokens, cache, visible)
    return output, decoder.logits(output.hidden)


def run(
    model: RandomDecoder, tokens: np.ndarray = TOKENS, visible: np.ndarray = WHOLE, cache: KVCache | None = None
) -> tuple[BranchOutput, np.ndarray]:
    output, logits = _branches(model.graphdef, model.params, tokens, cache or filled_cache(model), visible)
    return output, np.asarray(logits)


def truth(model: RandomDecoder, row: int, branch: int, visible: np.ndarray) -> np.ndarray:
    """The oracle's logits of a branch's slots, read behind the row's text as if there were no other branch."""
    length = LENGTHS[row]
    text = np.concatenate([TEXTS[row, :length], TOKENS[row, branch]])
    seen = oracle.causal(length + SLOTS)
    for slot, count in enumerate(visible[row, branch]):
        seen[length + slot] = np.arange(length + SLOTS) < length + count
    return model.truth(text, seen)[0][length:]


@pytest.mark.parametrize("visible", [WHOLE, CAUSAL], ids=["whole blocks", "causal"])
@each_config
def test_every_branch_is_a_text_of_its_own(name: str, visible: np.ndarray) -> None:
    model = random_decoder(CONFIGS[name])
    _, logits = run(model, visible=visible)
    for row in range(len(LENGTHS)):
        for branch in range(BRANCHES):
            np.testing.assert_allclose(
                logits[row, branch], truth(model, row, branch, visible), atol=TOLERANCE, err_msg=f"{row} {branch}"
            )


def test_branches_may_see_different_numbers_of_their_slots() -> None:
    """A commit beside drafts."""
    model = random_decoder(CONFIGS["query scale"])
    visible = WHOLE.copy()
    visible[1, 0] = visible[0, 2] = CAUSAL[0, 0]
    _, logits = run(model, visible=visible)
    for row, branch in ((1, 0), (1, 1), (0, 2), (0, 0)):
        np.testing.assert_allclose(logits[row, branch], truth(model, row, branch, visible), atol=TOLERANCE)
    assert np.abs(logits - run(model)[1]).max() > 0.01


@each_config
def test_each_branch_equals_the_ordinary_forward(name: str) -> None:
    """Its hidden states, and the keys and values that it would have written."""
    model = random_decoder(CONFIGS[name])
    output, logits = run(model)
    for branch in range(BRANCHES):
        alone = model.run(TOKENS[:, branch], filled_cache(model), visible=np.array(LENGTHS)[:, None] + WHOLE[:, branch])
        np.testing.assert_allclose(logits[:, branch], alone.logits, atol=TOLERANCE)
        assert alone.cache is not None
        for ours, written in zip((*output.keys, *output.values), (*alone.cache.keys, *alone.cache.values), strict=True):
            for row, length in enumerate(LENGTHS):
                np.testing.assert_allclose(
                    ours[row, :, branch], written[row, :, length : length + SLOTS], atol=TOLERANCE
                )


def test_one_branch_is_enough() -> None:
    model = random_decoder(CONFIGS["biases"])
    _, logits = run(model)
    _, single = run(model, TOKENS[:, 1:2], WHOLE[:, 1:2])
    np.testing.assert_allclose(single[:, 0], logits[:, 1], atol=TOLERANCE)


@each_config
def test_a_branch_sees_no_other(name: str) -> None:
    model = random_decoder(CONFIGS[name])
    other = TOKENS.copy()
    other[:, 1] = (other[:, 1] + 7) % 40
    (output, logits), (changed_output, changed) = run(model), run(model, other)
    np.testing.assert_array_equal(changed[:, [0, 2]], logits[:, [0, 2]])
    assert np.abs(changed[:, 1] - logits[:, 1]).max() > 0.1
    for ours, theirs in zip(changed_output.keys, output.keys, strict=True):
        np.testing.assert_array_equal(ours[:, :, [0, 2]], theirs[:, :, [0, 2]])


def test_what_lies_past_the_length_is_not_seen() -> None:
    model = random_decoder(CONFIGS["query scale"])
    np.testing.assert_array_equal(run(model)[1], run(model, cache=filled_cache(model, fill=0.0))[1])


def test_the_cache_is_as_it_was() -> None:
    model = random_decoder(CONFIGS["biases"])
    cache = filled_cache(model)
    before = jax.tree.map(np.array, cache)
    run(model, cache=cache)
    jax.tree.map(np.testing.assert_array_equal, cache, before)


@partial(jax.jit, static_argnums=(0, 6))
def _block(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    tokens: jax.Array,
    cache: KVCache,
    visible: jax.Array,
    starts: jax.Array | None,
    taps: tuple[int, ...] = (),
) -> tuple[DecoderOutput, jax.Array]:
    decoder = nnx.merge(graphdef, params)
    output = decoder.block(tokens, cache, visible, starts=starts, taps=taps)
    return output, decoder.logits(output.hidden)


@pytest.mark.parametrize(
    ("starts", "causal"),
    [(None, True), ((3, 1, 0), False), ((3, 1, 0), True)],
    ids=["behind, causal", "inside", "inside, causal"],
)
@pytest.mark.parametrize("implementation", ["xla", "triton"])
def test_blocks(
    implementation: str,
    starts: tuple[int, ...] | None,
    causal: bool,
    with_kernels: Callable[[RandomDecoder], RandomDecoder],
) -> None:
    """They are written to the cache, behind the text or in the place of some of it, and nothing else there changes."""
    model = random_decoder(replace(CONFIGS["query scale"], num_layers=1))
    run_by = model if implementation == "xla" else with_kernels(model)
    tokens, visible = TOKENS[:, 1], (CAUSAL if causal else WHOLE)[:, 1]
    before = filled_cache(model)
    given = None if starts is None else jnp.array(starts)
    output, logits = _block(run_by.graphdef, model.params, tokens, before, visible, given)
    assert output.cache is not None
    np.testing.assert_array_equal(output.cache.lengths, LENGTHS)
    nothing = np.zeros((1, SLOTS), bool)
    for row, start in enumerate(LENGTHS if starts is None else starts):
        block = (TEXTS[row, : LENGTHS[row]], tokens[row, None], visible[row, None])
        forest = folded_oracle.Forest(*block, [0], nothing, nothing[:, 0], nothing[:, 0], start)
        expected = folded_oracle.forward(model.tensors, model.settings, forest, delta=0.0)
        np.testing.assert_allclose(logits[row], expected.logits[0], atol=TOLERANCE)
        taken = np.arange(start, start + SLOTS)
        for ours, theirs, old in (
            (output.cache.keys, expected.keys, before.keys),
            (output.cache.values, expected.values, before.values),
        ):
            for layer, tables in enumerate(ours):
                written = np.asarray(tables[row])
                np.testing.assert_allclose(written[:, taken].swapaxes(0, 1), theirs[layer, 0], atol=TOLERANCE)
                kept = np.delete(old[layer][row], taken, axis=1)
                np.testing.assert_array_equal(np.delete(written, taken, axis=1), kept)


@pytest.mark.parametrize("implementation", ["xla", "triton"])
def test_taps_of_a_causal_block(implementation: str, with_kernels: Callable[[RandomDecoder], RandomDecoder]) -> None:
    """With norms of heads: logits and streams are those of the ordinary forward."""
    model = random_decoder(CONFIGS["head norms, tied"])
    run_by = model if implementation == "xla" else with_kernels(model)
    tokens, before = TOKENS[:, 1], filled_cache(model, 0.0)
    output, logits = _block(run_by.graphdef, model.params, tokens, before, CAUSAL[:, 1], None, (1, 0))
    expected = model.run(tokens, before, taps=(1, 0))
    np.testing.assert_allclose(logits, expected.logits, atol=TOLERANCE)
    for ours, theirs in zip(output.features, expected.features, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)
