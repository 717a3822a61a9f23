"""Forwards without a cache, against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from random_decoder import CONFIGS, random_decoder, small_config

TOLERANCE = 1e-5
ROWS = 11


def texts(batch: int, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 40, (batch, rows)).astype(np.int32)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_streams(name: str) -> None:
    model = random_decoder(CONFIGS[name])
    tokens = texts(2)
    output = model.run(tokens, taps=(0, 1))
    for row in range(2):
        logits, streams = model.truth(tokens[row], oracle.causal(ROWS))
        assert np.abs(logits).max() > 0.5, "too small to tell anything"
        np.testing.assert_allclose(output.logits[row], logits, atol=TOLERANCE)
        for ours, theirs in zip(output.features, streams, strict=True):
            np.testing.assert_allclose(ours[row], theirs, atol=TOLERANCE)


def test_taps_keep_the_order_asked_for() -> None:
    model = random_decoder(small_config())
    tokens = texts(1)
    _, streams = model.truth(tokens[0], oracle.causal(ROWS))
    features = model.run(tokens, taps=(1, 0, 1)).features
    assert len(features) == 3
    for ours, layer in zip(features, (1, 0, 1), strict=True):
        np.testing.assert_allclose(ours[0], streams[layer], atol=TOLERANCE)
    assert model.run(tokens).features == ()


@pytest.mark.parametrize("rows", [8, 10])
def test_block_causal(rows: int) -> None:
    model = random_decoder(CONFIGS["biases"])
    tokens = texts(1, rows)
    visible = ((np.arange(rows) // 4 + 1) * 4).clip(max=rows)[None]
    logits, _ = model.truth(tokens[0], oracle.block_causal(rows, 4))
    np.testing.assert_allclose(model.run(tokens, visible=visible).logits[0], logits, atol=TOLERANCE)


@pytest.mark.parametrize(
    "change",
    [{"rms_norm_eps": 0.1}, {"rotary": CONFIGS["query scale"].rotary}, {"tie_embeddings": True}],
    ids=lambda change: next(iter(change)),
)
def test_every_setting_matters(change: dict[str, Any]) -> None:
    tokens = texts(1)
    plain, changed = random_decoder(small_config()), random_decoder(small_config(**change))
    assert np.abs(plain.run(tokens).logits - changed.run(tokens).logits).max() > 0.01
