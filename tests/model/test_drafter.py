"""Drafts against plain numpy from the published tensors."""

from __future__ import annotations

from dataclasses import replace

import drafter_oracle
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from published_drafter import CONFIGS, PublishedDrafter, Text, published_drafter, small_drafter_config
from random_decoder import ROTARY, random_decoder, small_config

from specdiff_jax.keys import Keys
from specdiff_jax.model import KVCache
from specdiff_jax.model.drafter import DraftOutput, draft_logits, embed_block
from specdiff_jax.rotary_config import read_rotary

TOLERANCE = 1e-5
GARBAGE = 1e4
LENGTHS = (11, 4, 7)


def assert_close(ours: np.ndarray, truth: np.ndarray) -> None:
    np.testing.assert_allclose(ours, truth, rtol=0, atol=TOLERANCE * np.abs(truth).max())


def fresh_rows(
    texts: list[Text], known: tuple[int, ...], fresh: tuple[int, ...], width: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Features and embeddings of `fresh` tokens of each text behind its `known` ones, with garbage behind them."""

    def rows(arrays: list[np.ndarray]) -> np.ndarray:
        padded = np.full((len(arrays), width, arrays[0].shape[1]), GARBAGE, np.float32)
        for row, (array, begin, count) in enumerate(zip(arrays, known, fresh, strict=True)):
            padded[row, :count] = array[begin : begin + count]
        return padded

    features = tuple(rows(list(feature)) for feature in zip(*(text.features for text in texts), strict=True))
    return features, rows([text.context for text in texts])


def draft(
    model: PublishedDrafter,
    texts: list[Text],
    known: tuple[int, ...],
    fresh: tuple[int, ...],
    cache: KVCache,
    width: int,
) -> DraftOutput:
    """Draft behind `fresh` tokens of each text that follow its `known` ones, given as `width` rows."""
    block = np.stack([text.block for text in texts])
    return model.run(*fresh_rows(texts, known, fresh, width), block, fresh, cache)


@pytest.mark.parametrize("name", ["as published", "window, causal", "input, windows"])
def test_a_block_behind_a_text(name: str) -> None:
    """The cache has exactly the room for both."""
    model = published_drafter(CONFIGS[name])
    (text,) = texts = model.texts([9])
    output = draft(model, texts, (0,), (9,), model.empty(1, 14), width=9)
    assert output.cache.lengths.tolist() == [9]
    assert_close(output.hidden[0], model.truth(text))


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_in_several_calls(name: str) -> None:
    """Each text has its own length and its own number of fresh tokens a call, once none; every call drafts."""
    model = published_drafter(CONFIGS[name])
    texts = model.texts(LENGTHS)
    cache, known = model.empty(3, 19, GARBAGE), (0, 0, 0)
    for fresh in ((6, 1, 3), (2, 3, 0), (3, 0, 4)):
        output = draft(model, texts, known, fresh, cache, width=6)
        cache, known = output.cache, tuple(old + new for old, new in zip(known, fresh, strict=True))
        assert cache.lengths.tolist() == list(known)
        for hidden, text, tokens in zip(output.hidden, texts, known, strict=True):
            assert_close(hidden, model.truth(text.until(tokens)))
    assert known == LENGTHS


@pytest.mark.parametrize("name", ["as published", "sinks in a window", "input", "none"])
def test_prompts_that_were_read_before(name: str) -> None:
    """Padding among remembered rows is overwritten, since it stands past a text's length."""
    model = published_drafter(CONFIGS[name])
    texts, prompts = model.texts(LENGTHS), (8, 3, 7)
    cache = model.remember(*fresh_rows(texts, (0, 0, 0), prompts, width=8), model.empty(3, 16))
    assert cache.lengths.tolist() == [0, 0, 0]
    fresh = tuple(all_of - prompt for all_of, prompt in zip(LENGTHS, prompts, strict=True))
    output = draft(model, texts, prompts, fresh, cache.with_lengths(jnp.asarray(prompts)), width=3)
    for hidden, text in zip(output.hidden, texts, strict=True):
        assert_close(hidden, model.truth(text))


@pytest.mark.parametrize("slots", [1, 3])
def test_a_shorter_block(slots: int) -> None:
    model = published_drafter(CONFIGS["window"])
    texts = [replace(text, block=text.block[:slots]) for text in model.texts([6])]
    output = draft(model, texts, (0,), (6,), model.empty(1, 6 + slots), width=6)
    assert_close(output.hidden[0], model.truth(texts[0]))


def test_a_block_leaves_nothing_behind() -> None:
    """What follows a draft depends on the tokens that are committed, whatever block stood there."""
    model = published_drafter(CONFIGS["as published"])
    texts = model.texts([9])
    first = draft(model, texts, (0,), (6,), model.empty(1, 17), width=6)
    other = [replace(texts[0], block=np.full_like(texts[0].block, 3.0))]
    second = draft(model, other, (0,), (6,), model.empty(1, 17), width=6)
    assert np.abs(first.hidden - second.hidden).max() > 0.1
    ours, theirs = (draft(model, texts, (6,), (3,), output.cache, width=6) for output in (first, second))
    np.testing.assert_array_equal(ours.hidden, theirs.hidden)


def test_yarn() -> None:
    """The frequencies of the oracle are its own."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    rotary = read_rotary(Keys({"rope_theta": 100.0, "rope_scaling": scaling}), 8)
    frequencies, factor = drafter_oracle.yarn(8, 100.0, 4.0, 512)
    assert not np.allclose(frequencies, ROTARY.inverse_frequencies)
    model = published_drafter(small_drafter_config(backbone={"rotary": rotary}))
    texts = model.texts([9])
    settings = model.settings | {"inverse_frequencies": frequencies, "attention_factor": factor}
    truth = drafter_oracle.hidden(model.tensors, settings, texts[0].features, texts[0].context, texts[0].block)
    assert_close(draft(model, texts, (0,), (9,), model.empty(1, 14), width=9).hidden[0], truth)


@pytest.mark.parametrize("cap", [None, 0.7])
def test_the_targets_embedding_and_head(cap: float | None) -> None:
    """The block's embeddings are scaled; logits have a multiplier, then a cap, and none of the target's norm."""
    config = small_drafter_config(input_embedding_scale=3.0, output_multiplier=0.4, final_logit_softcapping=cap)
    target = random_decoder(small_config())
    decoder = nnx.merge(target.graphdef, target.params)
    tokens = jnp.array([[5, 39, 39], [0, 39, 39]])
    embedded = embed_block(decoder, config, tokens)
    assert_close(embedded, 3.0 * target.tensors["model.embed_tokens.weight"].astype(np.float64)[np.asarray(tokens)])
    truth = drafter_oracle.logits(np.asarray(embedded), target.tensors["lm_head.weight"], 0.4, cap)
    logits = draft_logits(decoder, config, embedded)
    assert logits.dtype == jnp.float32
    assert_close(logits, truth)
    assert_close(draft_logits(decoder, config, embedded, slice(10, 20)), truth[..., 10:20])
