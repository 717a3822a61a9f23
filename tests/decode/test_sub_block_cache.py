"""Drafts together with the sub-block cache (Fast-dLLM v2's DualCache): its tokens, in fewer forwards; and folded."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from functools import cache, partial

import jax.numpy as jnp
import numpy as np
import pytest
from diffusion_models import BLOCK, FAMILIES, MASK, diffusion_model, random_prompts
from draft_graphs import RICH

from specdiff_jax.decode import spiffy
from specdiff_jax.decode.drafting import draft, graph_tables
from specdiff_jax.decode.generate import Generation, generate
from specdiff_jax.decode.methods import SpecFold, Spiffy, Vanilla, denoising_spec
from specdiff_jax.decode.profiling import profile
from specdiff_jax.decode.requests import make_requests, row_keys
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.decode.verdict import Verdict
from specdiff_jax.draft_graph import fixed_graph
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model

PROMPTS = random_prompts(24, 24)
WIDTH = 4
ask = partial(generate, prompts=PROMPTS, max_new_tokens=21, batch_size=24, seed=1)
one_quickly = pytest.mark.parametrize("family", [FAMILIES[0], pytest.param(FAMILIES[1], marks=pytest.mark.slow)])
each_temperature = pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.7])


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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_folding_works_on_top(family: str) -> None:
    unfolded, some = folded(family, -1.0), folded(family, 0.2)
    assert [result.tokens for result in unfolded] == [result.tokens for result in drafted(family)]
    assert [result.forwards for result in unfolded] == [result.forwards for result in drafted(family)]
    assert {result.fold_ratio for result in unfolded} <= {0.0, None}
    ratios = [result.fold_ratio for result in some if result.fold_ratio is not None]
    assert 0.1 < sum(ratios) / len(ratios) < 0.9


@pytest.mark.slow
def test_a_row_is_the_same_in_any_company() -> None:
    """Also its drafts, which outlast the forwards that it waits through."""
    model, prompts = diffusion_model("fast_dllm_v2", layers=1), PROMPTS[:8]
    method = Spiffy(RICH, threshold=0.9, sub_block=WIDTH, sub_block_cache=True)
    greedy = sampling(0.0, 1.0, 0, model.config.vocab_size)
    asked = make_requests(model, prompts, len(prompts), row_keys(1, len(prompts)), 21, greedy)
    together = spiffy.run(model, asked, method, 21)
    for row in range(len(prompts)):
        limits = jnp.where(jnp.arange(len(prompts)) == row, 21, 0)
        alone = spiffy.run(model, dataclasses.replace(asked, limits=limits), method, 21)
        for name in ("tokens", "counts", "forwards", "accepted_drafts", "hits"):
            np.testing.assert_array_equal(getattr(alone, name)[row], getattr(together, name)[row], err_msg=name)


def test_drafts_stay_in_the_sub_block_and_leave_a_mask_in_it() -> None:
    """And a budget is spent on such drafts alone."""
    spec = denoising_spec(diffusion_model("fast_dllm_v2").config, Vanilla(sub_block=WIDTH))
    block = jnp.array([[1, 2, *[MASK] * (BLOCK - 2)]])
    ranked = jnp.broadcast_to(jnp.arange(2), (1, BLOCK, 2))
    verdict = Verdict(ranked[..., 0], jnp.ones((1, BLOCK)), ranked, jnp.full((1, BLOCK, 2), jnp.array([0.9, 0.05])))
    inside = jnp.arange(BLOCK)[None] < WIDTH
    fitting = [len(node.pairs) == 1 for node in RICH.nodes]
    made = draft(block, verdict, spec, graph_tables(RICH), RICH.budget, True, inside)
    assert made.valid[0].tolist() == fitting
    few = draft(block, verdict, spec, graph_tables(RICH), sum(fitting), True, inside)
    assert few.valid.all()


def test_layers_fold_the_rows_of_the_sub_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def before_compiling(model: Model, key: tuple[Hashable, ...], *_: object, **__: object) -> None:
        assert ((1 + RICH.budget) * WIDTH,) in key
        raise InterruptedError

    monkeypatch.setattr(spiffy, "run_loop", before_compiling)
    method = SpecFold(RICH, threshold=0.9, sub_block=WIDTH, sub_block_cache=True, buckets=1)
    with pytest.raises(InterruptedError):
        ask(diffusion_model("fast_dllm_v2"), method=method)


def test_a_sub_block_as_wide_as_the_block_is_refused() -> None:
    method = Spiffy(fixed_graph(2, 1), sub_block=BLOCK, sub_block_cache=True, force=True)
    with pytest.raises(InputError, match="sub_block_cache needs a sub_block smaller than the block"):
        ask(diffusion_model("fast_dllm_v2"), method=method)


def test_profiles_are_of_whole_blocks() -> None:
    method = SpecFold(RICH, sub_block=WIDTH, sub_block_cache=True)
    with pytest.raises(InputError, match="leave sub_block_cache out"):
        profile(diffusion_model("fast_dllm_v2"), PROMPTS, method)
