"""What is kept of a distribution, against numpy over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_decoder import RandomDecoder, random_decoder, small_config

from pallas_kernels.triton import likeliest as triton
from specdiff_jax.block_spec import BlockSpec, block_spec
from specdiff_jax.decode import verdict
from specdiff_jax.decode.sampling import Sampling, sampling
from specdiff_jax.decode.verdict import Verdict
from specdiff_jax.model import Decoder

VOCABULARY = 40
BATCH, SLOTS = 6, 4
ROW_BYTES = 4 * BATCH * SLOTS
"""Of one token's logits in every row."""


def spec_of(mask: int, family: str = "fast_dllm_v2") -> BlockSpec:
    return block_spec(small_config(family=family, block_size=SLOTS, mask_token_id=mask))


def whole_numbers(
    rebuilt: Callable[[RandomDecoder], RandomDecoder] = lambda decoder: decoder,
) -> tuple[Decoder, np.ndarray, np.ndarray]:
    """A decoder and hidden states whose logits are whole numbers, so exact, and often equal; and those logits."""
    generator = np.random.default_rng(0)
    decoder = rebuilt(random_decoder(small_config()))
    head = generator.integers(-1, 2, (VOCABULARY, decoder.config.hidden_size)).astype(np.float32)
    hidden = generator.integers(-1, 2, (BATCH, SLOTS, decoder.config.hidden_size)).astype(np.float32)
    params = jax.tree.map(lambda leaf: leaf, decoder.params)
    params["head"] = params["head"].replace(jnp.asarray(head))
    return nnx.merge(decoder.graphdef, params), hidden, hidden @ head.T


def expect(found: Verdict, logits: np.ndarray, mask: int, ranks: int) -> None:
    plain = logits.astype(np.float64)
    plain[..., mask] = -np.inf
    shares = np.exp(plain) / np.exp(plain).sum(axis=-1, keepdims=True)
    order = np.argsort(-plain, axis=-1, kind="stable")[..., :ranks]
    np.testing.assert_array_equal(found.ranked, order)
    np.testing.assert_allclose(found.probabilities, np.take_along_axis(shares, order, axis=-1), rtol=1e-5)


def expect_greedy(found: Verdict, logits: np.ndarray, mask: int, ranks: int) -> None:
    expect(found, logits, mask, ranks)
    np.testing.assert_array_equal(found.tokens, found.ranked[..., 0])
    np.testing.assert_allclose(found.confidence, found.probabilities[..., 0], rtol=1e-6)


_judge = jax.jit(verdict.judge, static_argnums=(1, 4))


def judge(logits: np.ndarray, spec: BlockSpec, settings: Sampling, ranks: int) -> Verdict:
    return _judge(jnp.asarray(logits), spec, settings, jax.random.split(jax.random.key(0), BATCH), ranks)


def judge_greedily(decoder: Decoder, hidden: np.ndarray, mask: int, ranks: int) -> Verdict:
    return jax.jit(lambda rows: verdict.judge_greedily(decoder, rows, spec_of(mask), ranks))(jnp.asarray(hidden))


def test_the_logits_have_ties() -> None:
    _, _, logits = whole_numbers()
    best = np.sort(logits, axis=-1)[..., ::-1]
    assert (best[..., 0] == best[..., 1]).any()


@pytest.mark.parametrize(("mask", "ranks"), [(0, 3), (17, 3), (39, 12)])
def test_judge_equals_numpy(mask: int, ranks: int) -> None:
    _, _, logits = whole_numbers()
    found = judge(logits, spec_of(mask), sampling(0.0, 1.0, 0, VOCABULARY), ranks)
    expect_greedy(found, logits, mask, ranks)


@pytest.mark.parametrize(
    ("mask", "chunk", "ranks"), [(0, 15, 3), (17, 16, 3), (39, 20, 3), (39, 13, 1), (17, 14, 15), (0, 100, 3)]
)
def test_judge_greedily_equals_numpy_in_pieces(
    mask: int, chunk: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that divide the vocabulary or don't, smaller than the ranks and larger than everything."""
    monkeypatch.setattr(verdict, "LOGIT_BYTES", chunk * ROW_BYTES)
    decoder, hidden, logits = whole_numbers()
    expect_greedy(judge_greedily(decoder, hidden, mask, ranks), logits, mask, ranks)


@pytest.mark.parametrize(("mask", "chunk", "ranks"), [(17, 100, 3), (39, 13, 2)])
def test_through_kernels_equals_numpy(
    mask: int,
    chunk: int,
    ranks: int,
    with_kernels: Callable[[RandomDecoder], RandomDecoder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdict, "LOGIT_BYTES", chunk * ROW_BYTES)
    sizes = count_calls(monkeypatch)
    decoder, hidden, logits = whole_numbers(with_kernels)
    expect_greedy(judge_greedily(decoder, hidden, mask, ranks), logits, mask, ranks)
    assert sum(sizes) == logits.size


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many logits each call of the kernel reads, a call after the other."""
    sizes: list[int] = []
    kernel = triton.likeliest

    def counted(logits: jax.Array, banned: int, ranks: int) -> tuple[jax.Array, ...]:
        sizes.append(logits.size)
        return kernel(logits, banned, ranks)

    monkeypatch.setattr(triton, "likeliest", counted)
    return sizes


def test_branches_are_judged_like_rows() -> None:
    decoder, hidden, logits = whole_numbers()
    rows = judge_greedily(decoder, hidden.reshape(2, 3, SLOTS, -1), 39, 2)
    expect_greedy(rows, logits.reshape(2, 3, SLOTS, -1), 39, 2)


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.8, 3)])
@pytest.mark.parametrize("family", ["fast_dllm_v2", "nemotron_labs_diffusion"])
def test_ranks_take_no_notice_of_temperature_and_filters(family: str, top_p: float, top_k: int) -> None:
    _, _, logits = whole_numbers()
    spec = spec_of(17, family)
    found = judge(logits, spec, sampling(3.0, top_p, top_k, VOCABULARY), 3)
    expect(found, logits, 17, 3)
    assert (np.asarray(found.tokens) != np.asarray(found.ranked[..., 0])).any()
    assert not (np.asarray(found.tokens) == 17).any()


def test_a_likely_mask_is_never_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "LOGIT_BYTES", 16 * ROW_BYTES)
    decoder, hidden, _ = whole_numbers()
    assert decoder.head is not None
    favoured = 100.0 * np.sign(hidden[0, 0])
    decoder.head[...] = decoder.head[...].at[17].set(favoured)
    logits = hidden @ np.asarray(decoder.head[...]).T
    assert logits[0, 0].argmax() == 17
    expect_greedy(judge_greedily(decoder, hidden, 17, 3), logits, 17, 3)
