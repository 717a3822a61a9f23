"""Decoding through kernels, interpreted in float32, against decoding in plain JAX: the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffusion_models import FAMILIES, SUB_BLOCK, diffusion_decoder, diffusion_model, random_prompts
from draft_graphs import RICH
from random_decoder import RandomDecoder

from specdiff_jax.decode import block_diffusion, folding, spiffy
from specdiff_jax.decode.loop import BatchResult
from specdiff_jax.decode.methods import SpecFold, Spiffy, Vanilla
from specdiff_jax.decode.requests import make_requests, row_keys
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.loading import Model

LIMIT, DELTA = 13, 0.05
PROMPTS = random_prompts(3, 12, seed=2)
FAST_DLLM, NEMOTRON = FAMILIES
Rebuild = Callable[[RandomDecoder], RandomDecoder]


def decode(model: Model, method: Vanilla | Spiffy) -> BatchResult:
    greedy = sampling(0.0, 1.0, 0, model.config.vocab_size)
    asked = make_requests(model, PROMPTS, len(PROMPTS), row_keys(0, len(PROMPTS)), LIMIT, greedy)
    run = spiffy.run if isinstance(method, Spiffy) else block_diffusion.run
    return run(model, asked, method, LIMIT)


def same(
    ours: BatchResult, theirs: BatchResult, names: tuple[str, ...] = ("tokens", "counts", "step_map", "forwards")
) -> None:
    for name in names:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)


def methods(family: str, *, sub_block_cache: bool = False) -> dict[str, Vanilla | Spiffy]:
    common = {"threshold": 0.9, "sub_block": SUB_BLOCK[family], "sub_block_cache": sub_block_cache}
    return {
        "vanilla": Vanilla(**common),
        "spiffy": Spiffy(RICH, **common),
        "specfold": SpecFold(RICH, **common, delta=DELTA, buckets=2),
    }


def through_kernels(family: str, with_kernels: Rebuild) -> Model:
    return replace(diffusion_model(family), graphdef=with_kernels(diffusion_decoder(family)).graphdef, programs={})


@pytest.mark.parametrize(
    ("family", "name", "cached"),
    [
        pytest.param(FAST_DLLM, "vanilla", True, marks=pytest.mark.slow),
        (NEMOTRON, "vanilla", False),
        (FAST_DLLM, "spiffy", False),
        pytest.param(FAST_DLLM, "spiffy", True, marks=pytest.mark.slow),
        pytest.param(NEMOTRON, "spiffy", False, marks=pytest.mark.slow),
    ],
)
def test_tokens_are_those_of_plain_jax(family: str, name: str, cached: bool, with_kernels: Rebuild) -> None:
    method = methods(family, sub_block_cache=cached)[name]
    same(decode(through_kernels(family, with_kernels), method), decode(diffusion_model(family), method))


@pytest.mark.parametrize("family", [FAST_DLLM, pytest.param(NEMOTRON, marks=pytest.mark.slow)])
def test_a_forward_with_too_few_places_is_repeated(
    family: str, with_kernels: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where far fewer rows are expected than are needed: the same tokens and folds, and more forwards."""
    method = methods(family)["specfold"]
    plain = decode(diffusion_model(family), method)
    monkeypatch.setattr(folding, "expected_rows", partial(_too_few, folding.expected_rows))
    short = decode(through_kernels(family, with_kernels), method)
    same(short, plain, ("tokens", "counts", "accepted_drafts", "hits", "child_rows", "folded_rows"))
    assert short.forwards.sum() > plain.forwards.sum()


def _too_few(expected: Callable[..., jax.Array], of: folding.Folding, outlook: folding.Outlook) -> jax.Array:
    """One row, but where the last forward had too few places."""
    return jnp.where(outlook.fits, 1.0, expected(of, outlook))


def test_what_is_expected_follows_what_was_needed() -> None:
    """All rows at first and after a forward with too few places; the right number once it stays the same."""
    nobody = jnp.zeros((2, 3), bool)
    forced = jnp.zeros((2, 3, 4), bool).at[:, 1, 0].set(True)
    of = folding.Folding(
        nobody.astype(int), (forced,), nobody.at[:, 0].set(True), nobody.at[1, 2].set(True), 0.0, (12,)
    )
    outlook = folding.no_outlook()
    assert folding.expected_rows(of, outlook) == 10  # 20 of 24 rows are read, 10 of them must be computed
    for needed in (14, 14, 14):
        outlook = folding.next_outlook(outlook, of, jnp.int32(needed), jnp.bool_(True))
        np.testing.assert_allclose(folding.expected_rows(of, outlook), 7, rtol=1e-6)
    lost = folding.next_outlook(outlook, of, jnp.int32(20), jnp.bool_(False))
    assert folding.expected_rows(of, lost) == 10
    again = folding.next_outlook(lost, of, jnp.int32(18), jnp.bool_(True))
    assert 7 < folding.expected_rows(of, again) <= 10
