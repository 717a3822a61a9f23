"""Drafts together with the sub-block cache (Fast-dLLM v2's DualCache): its tokens, in fewer forwards; and folded."""

from __future__ import annotations

from functools import cache, partial

import pytest
from diffusion_models import BLOCK, FAMILIES, diffusion_model, random_prompts
from draft_graphs import RICH

from specdiff_jax.decode.generate import Generation, generate
from specdiff_jax.decode.methods import SpecFold, Spiffy, Vanilla
from specdiff_jax.decode.profiling import profile
from specdiff_jax.draft_graph import fixed_graph
from specdiff_jax.errors import InputError

PROMPTS = random_prompts(24, 24)
WIDTH = 4
ask = partial(generate, prompts=PROMPTS, max_new_tokens=21, batch_size=24, seed=1)
one_quickly = pytest.mark.parametrize("family", [FAMILIES[0], pytest.param(FAMILIES[1], marks=pytest.mark.slow)])
each_temperature = pytest.mark.parametrize("temperature", [0.0, pytest.param(0.7, marks=pytest.mark.slow)])


@cache
def plain(family: str, temperature: float = 0.0) -> list[Generation]:
    method = Vanilla(0.9, sub_block=WIDTH, sub_block_cache=True)
    return ask(diffusion_model(family), method=method, temperature=temperature)


@cache
def drafted(family: str, temperature: float = 0.0) -> list[Generation]:
    method = Spiffy(RICH, threshold=0.9, sub_block=WIDTH, sub_block_cache=True)
    return ask(diffusion_model(family), method=method, temperature=temperature)


@cache
def folded(family: str, delta: float) -> list[Generation]:
    method = SpecFold(RICH, threshold=0.9, sub_block=WIDTH, sub_block_cache=True, delta=delta, buckets=2)
    return ask(diffusion_model(family), method=method)


@each_temperature
@one_quickly
def test_tokens_are_those_of_vanilla_decoding_with_the_cache(family: str, temperature: float) -> None:
    expected = plain(family, temperature)
    results = drafted(family, temperature)
    assert [result.tokens for result in results] == [result.tokens for result in expected]
    assert [result.forwards + result.accepted_drafts for result in results] == [result.forwards for result in expected]
    assert sum(result.accepted_drafts for result in results) > 5


def test_the_cache_is_no_exact_method() -> None:
    """Else the tests above would show nothing of it."""
    exact = ask(diffusion_model("fast_dllm_v2"), method=Vanilla(0.9, sub_block=WIDTH))
    assert [result.tokens for result in plain("fast_dllm_v2")] != [result.tokens for result in exact]


@pytest.mark.slow
@one_quickly
def test_exact_mode_gives_the_same(family: str) -> None:
    model, some = diffusion_model(family), PROMPTS[:6]
    shared = {"threshold": 0.9, "sub_block": WIDTH, "sub_block_cache": True}
    serial = partial(generate, model, some, max_new_tokens=21, exact=True)
    results, expected = serial(Spiffy(RICH, **shared)), serial(Vanilla(**shared))
    assert [result.tokens for result in results] == [result.tokens for result in expected]
    assert sum(result.accepted_drafts for result in results) > 0


@one_quickly
def test_folding_works_on_top(family: str) -> None:
    unfolded, some = folded(family, -1.0), folded(family, 0.2)
    assert [result.tokens for result in unfolded] == [result.tokens for result in drafted(family)]
    assert [result.forwards for result in unfolded] == [result.forwards for result in drafted(family)]
    assert {result.fold_ratio for result in unfolded} <= {0.0, None}
    ratios = [result.fold_ratio for result in some if result.fold_ratio is not None]
    assert 0.1 < sum(ratios) / len(ratios) < 0.9


def test_a_sub_block_as_wide_as_the_block_is_refused() -> None:
    method = Spiffy(fixed_graph(2, 1), sub_block=BLOCK, sub_block_cache=True, force=True)
    with pytest.raises(InputError, match="sub_block_cache needs a sub_block smaller than the block"):
        ask(diffusion_model("fast_dllm_v2"), method=method)


def test_profiles_are_of_whole_blocks() -> None:
    method = SpecFold(RICH, sub_block=WIDTH, sub_block_cache=True)
    with pytest.raises(InputError, match="leave sub_block_cache out"):
        profile(diffusion_model("fast_dllm_v2"), PROMPTS, method)
