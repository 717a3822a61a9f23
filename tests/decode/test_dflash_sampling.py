"""Sampled with DFlash, tokens are distributed as the target's, whichever drafts were accepted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from drafters import TARGETS, drafter_of, knowing, target_of
from random_decoder import RandomDecoder, random_decoder, small_config
from scipy.stats import chisquare

from specdiff_jax.decode import dflash
from specdiff_jax.decode.generate import generate
from specdiff_jax.decode.methods import Autoregressive, DFlash
from specdiff_jax.decode.requests import Requests, row_keys
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.loading import Model

VOCABULARY, LENGTH = 6, 3
TEMPERATURE, TOP_P, TOP_K = 1.0, 0.9, 5
PROMPT = [3, 1, 4, 1]
ROWS, BATCHES = 20_000, 5


@pytest.mark.parametrize("family", TARGETS)
def test_draws_are_those_of_autoregressive_decoding(family):
    """With the same seed, whatever was drafted."""
    model = target_of(family)
    prompts = np.random.default_rng(2).integers(0, 39, (8, 12)).tolist()
    options = {"max_new_tokens": 20, "temperature": 0.7, "top_p": 0.95, "top_k": 20, "seed": 4, "exact": True}
    own = generate(model, prompts, Autoregressive(), **options)
    drafted = generate(model, prompts, DFlash(drafter_of(model)), **options)
    assert [result.tokens for result in drafted] == [result.tokens for result in own]


def tiny_target() -> RandomDecoder:
    return random_decoder(small_config(vocab_size=VOCABULARY, num_heads=2, num_kv_heads=1))


def probabilities(decoder: RandomDecoder, text: Sequence[int]) -> np.ndarray:
    """Of the token behind a text, over temperature, top-k and top-p, in float64."""
    logits = decoder.truth(np.array(text), oracle.causal(len(text)))[0][-1].astype(np.float64) / TEMPERATURE
    odds = np.exp(logits - logits.max())
    order = np.argsort(-odds)
    odds[order[TOP_K:]] = 0
    odds /= odds.sum()
    before = np.cumsum(odds[order]) - odds[order]
    odds[order[before >= TOP_P]] = 0
    return odds / odds.sum()


def expected_shares(decoder: RandomDecoder) -> dict[tuple[int, ...], float]:
    """Of every run of first tokens that can be drawn."""
    shares: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        shares = {
            (*run, token): share * odds
            for run, share in shares.items()
            for token, odds in enumerate(probabilities(decoder, [*PROMPT, *run]))
            if odds
        }
    return shares


def draws(batches: int = BATCHES) -> tuple[np.ndarray, np.ndarray]:
    """First tokens of many rows, and how many of each row were drafted."""
    decoder = tiny_target()
    model = Model("tiny", decoder.config, decoder.graphdef, decoder.params, None, ())
    method = DFlash(drafter_of(model, block_size=LENGTH, mask_token_id=0))
    drawn, accepted = [], []
    for seed in range(batches):
        requests = Requests(
            prompts=jnp.tile(jnp.asarray(PROMPT, jnp.int32), (ROWS, 1)),
            prompt_lengths=jnp.full(ROWS, len(PROMPT), jnp.int32),
            limits=jnp.full(ROWS, LENGTH, jnp.int32),
            stop_ids=jnp.asarray([-1], jnp.int32),
            keys=row_keys(seed, ROWS),
            sampling=sampling(TEMPERATURE, TOP_P, TOP_K, VOCABULARY),
        )
        result = dflash.run(model, requests, method, LENGTH)
        drawn.append(result.tokens[:, :LENGTH])
        accepted.append(result.accepted_drafts)
    return np.concatenate(drawn), np.concatenate(accepted)


def chance(drawn: np.ndarray) -> float:
    """p of the chi-square test against the target's own distribution; 0 where it can't give what was drawn."""
    shares = expected_shares(tiny_target())
    counts = dict.fromkeys(itertools.product(range(VOCABULARY), repeat=LENGTH), 0)
    for run, count in zip(*np.unique(drawn, axis=0, return_counts=True), strict=True):
        counts[tuple(run.tolist())] = int(count)
    if any(count and run not in shares for run, count in counts.items()):
        return 0.0
    observed = np.array([counts[run] for run in shares])
    expected = np.array([*shares.values()]) * len(drawn)
    rare = expected < 5
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return float(chisquare(observed, expected).pvalue)


def most_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the drafter say what the target most likely says."""
    monkeypatch.setattr(dflash, "draft", knowing(lambda state: jnp.full_like(state.counts, LENGTH)))


@pytest.mark.parametrize("drafter", ["random", "good"])
def test_sampled_tokens_have_the_targets_distribution(monkeypatch, drafter):
    if drafter == "good":
        most_likely(monkeypatch)
    drawn, accepted = draws()
    assert len(drawn) == 100_000
    assert set(np.unique(accepted)) == {0, 1, 2}, "both kinds of path must be there"
    assert chance(drawn) > 0.01


def test_a_draft_compared_with_the_wrong_row_is_noticed(monkeypatch):
    """The same test with a fault planted: a draft is compared with what the target draws behind it, not before."""

    def one_row_off(drafts: jax.Array, own: jax.Array) -> jax.Array:
        return jnp.sum(jnp.cumprod(drafts == own[:, 1:], axis=1), axis=1, dtype=jnp.int32)

    most_likely(monkeypatch)
    monkeypatch.setattr(dflash, "agreeing", one_row_off)
    drawn, _ = draws(batches=1)
    assert chance(drawn) < 1e-9
