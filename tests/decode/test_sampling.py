"""Sampling against plain numpy definitions of top-k and top-p, and in distribution."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdiff_jax.decode.sampling import choose, keep_likely, sampling
from specdiff_jax.errors import InputError


def kept_by_definition(logits: np.ndarray, top_p: float, top_k: int) -> set[int]:
    order = sorted(range(len(logits)), key=lambda i: -logits[i])[:top_k]
    weights = np.exp(logits[order] - logits[order].max())
    weights /= weights.sum()
    kept, mass = set(), 0.0
    for index, weight in zip(order, weights, strict=True):
        if mass >= top_p:
            break
        kept.add(index)
        mass += weight
    return kept


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(-40, 40), min_size=8, max_size=8, unique=True),
    st.floats(0.05, 0.999),
    st.integers(1, 8),
)
def test_filters_keep_what_their_definition_keeps(values, top_p, top_k):
    logits = np.asarray(values, np.float32) / 8
    kept = keep_likely(jnp.asarray(logits)[None], jnp.float32(top_p), jnp.int32(top_k))[0]
    got = set(np.flatnonzero(np.isfinite(kept)).tolist())
    want = kept_by_definition(logits.astype(np.float64), top_p, top_k)
    # A mass within rounding of top_p may fall on either side: only the last token may differ.
    assert len(got ^ want) <= 1
    assert int(np.argmax(logits)) in got


def test_a_vanishing_nucleus_keeps_the_likeliest():
    kept = keep_likely(jnp.asarray([[0.0, 2.0, 1.0]]), jnp.float32(1e-46), jnp.int32(3))
    assert np.flatnonzero(np.isfinite(kept[0])).tolist() == [1]


def test_greedy_takes_the_largest():
    logits = jnp.asarray([[0.0, 3.0, 1.0], [2.0, -1.0, 1.9]])
    keys = jax.random.split(jax.random.key(0), 2)
    assert choose(logits, sampling(0.0, 1.0, 0, 3), keys).tolist() == [1, 0]


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.7, 0), (1.0, 2)])
def test_samples_follow_the_distribution(top_p, top_k):
    logits = np.asarray([1.0, 0.5, 0.0, -1.0, -3.0])
    temperature = 0.8
    draws = 40_000
    settings_ = sampling(temperature, top_p, top_k, 5)
    keys = jax.random.split(jax.random.key(1), draws)
    tokens = np.asarray(choose(jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (draws, 5)), settings_, keys))
    scaled = logits / temperature
    kept = sorted(kept_by_definition(scaled, top_p, top_k or 5))
    expected = np.zeros(5)
    expected[kept] = np.exp(scaled[kept])
    expected /= expected.sum()
    counts = np.bincount(tokens, minlength=5)
    assert counts[expected == 0].sum() == 0
    seen = expected > 0
    chi_square = (((counts - draws * expected) ** 2)[seen] / (draws * expected[seen])).sum()
    assert chi_square < 20  # 4 degrees of freedom: p = 0.0005


def test_a_row_draws_the_same_wherever_it_stands():
    logits = jax.random.normal(jax.random.key(2), (4, 50))
    keys = jax.random.split(jax.random.key(3), 4)
    settings_ = sampling(1.0, 0.9, 20, 50)
    together = choose(logits, settings_, keys)
    alone = [int(choose(logits[i : i + 1], settings_, keys[i : i + 1])[0]) for i in range(4)]
    turned = choose(logits[::-1], settings_, keys[::-1])
    assert together.tolist() == alone == turned[::-1].tolist()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((-0.1, 1.0, 0), "temperature"),
        ((float("nan"), 1.0, 0), "temperature"),
        ((float("inf"), 1.0, 0), "temperature"),
        ((1e-40, 1.0, 0), "temperature"),
        ((1e39, 1.0, 0), "temperature"),
        ((1.0, 0.0, 0), "top_p"),
        ((1.0, 1.1, 0), "top_p"),
        ((1.0, 1.0, -1), "top_k"),
    ],
)
def test_settings_out_of_range_are_refused(arguments, word):
    with pytest.raises(InputError, match=word):
        sampling(*arguments, vocab_size=10)
