"""Forwards against the cache, row by row as if there were none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from random_decoder import CONFIGS, RandomDecoder, random_decoder, small_config

from specdiff_jax.model import KVCache, empty_cache

TOLERANCE = 1e-5
CAPACITY = 20
GARBAGE = 1e4
"""Finite, because a masked NaN stays a NaN (0 * NaN): that is why a cache starts from zeros."""


def texts(batch: int, rows: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, 40, (batch, rows)).astype(np.int32)


def new_cache(model: RandomDecoder, batch: int, fill: float = 0.0) -> KVCache:
    cache = empty_cache(model.config, batch, CAPACITY, jnp.float32)
    return jax.tree.map(lambda array: jnp.full_like(array, fill) if array.ndim > 1 else array, cache)


def read_ragged(
    model: RandomDecoder, tokens: np.ndarray, prompts: tuple[int, ...], chunks: tuple[int, ...], fill: float = 0.0
) -> list[np.ndarray]:
    """Each row's logits: its own prompt in one padded forward, then chunks, all rows side by side."""
    lengths = np.array(prompts)
    width = lengths.max()
    output = model.run(
        np.where(np.arange(width) < lengths[:, None], tokens[:, :width], 7), new_cache(model, len(lengths), fill)
    )
    logits = [[output.logits[row, :length]] for row, length in enumerate(prompts)]
    cache = output.cache
    for chunk in chunks:
        rows = np.stack([text[start : start + chunk] for text, start in zip(tokens, lengths, strict=True)])
        output = model.run(rows, cache.with_lengths(jnp.asarray(lengths)))
        cache = output.cache
        lengths = lengths + chunk
        for row, parts in enumerate(logits):
            parts.append(output.logits[row])
    return [np.concatenate(parts) for parts in logits]


@pytest.mark.parametrize(
    "name", ["group of 4", "group of 7", "biases", "head norms, tied", "query scale", "experts, plain weights"]
)
def test_ragged_rows_in_chunks(name: str) -> None:
    model = random_decoder(CONFIGS[name])
    tokens, prompts, chunks = texts(3, 14), (5, 3, 1), (1, 1, 5, 1)
    for text, length, logits in zip(tokens, prompts, read_ragged(model, tokens, prompts, chunks), strict=True):
        rows = length + sum(chunks)
        truth, _ = model.truth(text[:rows], oracle.causal(rows))
        np.testing.assert_allclose(logits, truth, atol=TOLERANCE)


def test_one_row_in_chunks() -> None:
    model = random_decoder(small_config())
    tokens = texts(1, 12)
    (logits,) = read_ragged(model, tokens, (4,), (1, 1, 5, 1))
    truth, _ = model.truth(tokens[0], oracle.causal(12))
    np.testing.assert_allclose(logits, truth[: len(logits)], atol=TOLERANCE)


@pytest.mark.parametrize("name", ["group of 4", "experts, plain weights"])
def test_what_lies_past_the_length_is_not_seen(name: str) -> None:
    model = random_decoder(CONFIGS[name])
    clean = read_ragged(model, texts(3, 14), (5, 3, 1), (1, 1, 5, 1))
    dirty = read_ragged(model, texts(3, 14), (5, 3, 1), (1, 1, 5, 1), fill=GARBAGE)
    for ours, theirs in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_an_empty_cache_is_zeros() -> None:
    cache = new_cache(random_decoder(small_config()), 2)
    assert cache.capacity == CAPACITY
    assert cache.lengths.tolist() == [0, 0]
    assert all((array == 0).all() for array in (*cache.keys, *cache.values))


def test_only_the_new_rows_are_written() -> None:
    model = random_decoder(small_config())
    before = new_cache(model, 2, fill=3.0).with_lengths(jnp.array([4, 9]))
    after = model.run(texts(2, 5), before).cache
    assert after.lengths.tolist() == [4, 9]
    for array in (*after.keys, *after.values):
        changed = (np.asarray(array) != 3.0).any(axis=(1, 3))
        assert [np.flatnonzero(row).tolist() for row in changed] == [[4, 5, 6, 7, 8], [9, 10, 11, 12, 13]]


def test_a_block_is_read_again_without_commit() -> None:
    """A denoising step: every row of the block sees the prefix and the whole block; nothing is committed."""
    model = random_decoder(CONFIGS["query scale"])
    prefix, block = 6, 4
    tokens = texts(1, prefix + block)
    cache = model.run(tokens[:, :prefix], new_cache(model, 1, GARBAGE)).cache.with_lengths(jnp.array([prefix]))
    visible = np.full((1, block), prefix + block)
    first = model.run(tokens[:, prefix:], cache, visible=visible)
    truth, _ = model.truth(tokens[0], oracle.block_after_prefix(prefix, block))
    np.testing.assert_allclose(first.logits[0], truth[prefix:], atol=TOLERANCE)

    again = model.run(tokens[:, prefix:], first.cache, visible=visible)
    np.testing.assert_array_equal(again.logits, first.logits)
    other = model.run(tokens[:, :block], again.cache, visible=visible)
    assert np.abs(other.logits - first.logits).max() > 0.1
    back = model.run(tokens[:, prefix:], other.cache, visible=visible)
    np.testing.assert_array_equal(back.logits, first.logits)


def test_block_causal_reading_block_by_block() -> None:
    model = random_decoder(CONFIGS["biases"])
    tokens = texts(2, 12)
    cache = new_cache(model, 2, GARBAGE)
    parts = []
    for start in range(0, 12, 4):
        visible = np.full((2, 4), start + 4)
        output = model.run(tokens[:, start : start + 4], cache, visible=visible)
        parts.append(output.logits)
        cache = output.cache.with_lengths(jnp.full(2, start + 4))
    logits = np.concatenate(parts, axis=1)
    for row in range(2):
        truth, _ = model.truth(tokens[row], oracle.block_causal(12, 4))
        np.testing.assert_allclose(logits[row], truth, atol=TOLERANCE)
