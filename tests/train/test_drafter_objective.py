"""The drafter's objective against plain loops over blocks, each drafted as in decoding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_decoder import random_decoder, small_config
from random_drafter import BLOCK, MASK, drafter_config, random_block_drafter

from convert.params import named
from specdiff_jax.drafter_config import DrafterConfig
from specdiff_jax.model import Decoder, empty_cache
from specdiff_jax.model.drafter import draft_logits, embed_block
from specdiff_jax.train import drafter_objective as module
from specdiff_jax.train.drafter_objective import (
    DrafterObjectiveSettings,
    default_gamma,
    drafter_objective,
    make_drafter_loss,
    target_features,
)
from specdiff_jax.train.examples import Example
from specdiff_jax.train.packing import pack
from specdiff_jax.train.programs import FEATURES, ROWS

WIDTH, STOP = 24, 0
SETTINGS = DrafterObjectiveSettings(anchors=64, gamma=3.0)
TARGET = random_decoder(small_config())
KEY = jax.random.key(4)


def packed_batch() -> dict[str, jax.Array]:
    """Texts of all lengths; one response is a single token, which nothing can be drafted from."""
    generator = np.random.default_rng(0)
    drawn = [generator.integers(1, MASK, size).tolist() for size in (11, 12, 5, 9, 17)]
    starts = (4, 1, 4, 6, 3)
    texts = [Example(tuple(ids[:start]), tuple(ids[start:])) for ids, start in zip(drawn, starts, strict=True)]
    packed = pack(texts, WIDTH, None, STOP)
    assert packed.segments.max() > 1
    batch = packed.take(np.arange(packed.rows))
    return jax.tree.map(jnp.asarray, {**batch, ROWS: np.arange(packed.rows, dtype=np.int32)})


@partial(jax.jit, static_argnums=(0, 1))
def measured(config: DrafterConfig, settings: DrafterObjectiveSettings, batch, key):
    graphdef, params = random_block_drafter(config)
    loss = make_drafter_loss(graphdef, params, TARGET.graphdef, drafter_objective(settings), "float32")
    return loss(named(params), TARGET.params, batch, key)


@partial(jax.jit, static_argnums=0)
def drafted(config: DrafterConfig, tokens: jax.Array, anchor: jax.Array) -> jax.Array:
    """Log-probabilities of a block, by the decoding form, from the features of its own text alone."""
    graphdef, params = random_block_drafter(config)
    drafter, target = nnx.merge(graphdef, params), nnx.merge(TARGET.graphdef, TARGET.params)
    assert isinstance(target, Decoder)
    features = target(tokens[None], taps=config.target_layer_ids).features
    context = drafter.context(features, embed_block(target, config, tokens[None]))
    ids = jnp.array([[tokens[anchor], *[MASK] * (BLOCK - 1)]])
    cache = empty_cache(config.backbone, 1, 2 * WIDTH, jnp.float32)
    hidden = drafter(embed_block(target, config, ids), context, anchor[None], cache).hidden
    return jax.nn.log_softmax(draft_logits(target, config, hidden)[0])


def expected(config: DrafterConfig, settings: DrafterObjectiveSettings, batch) -> dict[str, float]:
    """Loops over every anchor that there is."""
    tokens, segments, response = (np.asarray(batch[name]) for name in ("tokens", "segments", "response"))
    weighted, weights, right, lengths = 0.0, 0.0, [], []
    for row, anchor in np.ndindex(tokens.shape):
        text = np.flatnonzero((segments[row] == segments[row, anchor]) & (segments[row] > 0))
        if not response[row, anchor] or anchor == text[-1]:
            continue
        own = np.pad(tokens[row, text], (0, WIDTH - len(text)))
        logs = np.asarray(drafted(config, jnp.asarray(own), jnp.int32(anchor - text[0])), np.float64)
        labels = tokens[row, anchor + 1 : min(anchor + BLOCK, text[-1] + 1)]
        losses = np.array([-logs[slot, label] for slot, label in enumerate(labels, start=1)])
        factors = np.array([np.exp(-slot / settings.gamma) for slot in range(len(labels))])
        if settings.d_pace is not None:
            smoothed = (1 - settings.d_pace) * np.exp(-losses) + settings.d_pace
            prefixes = [np.prod(smoothed[: end + 1]) for end in range(len(labels))]
            factors = np.array([sum(prefixes[slot:]) for slot in range(len(labels))])
        weighted += float(losses @ factors)
        weights += float(factors.sum())
        hits = [int(logs[slot].argmax()) == label for slot, label in enumerate(labels, start=1)]
        right += hits
        lengths.append(1 + (hits.index(False) if False in hits else len(hits)))
    return {
        "loss": weighted / weights,
        "accuracy": float(np.mean(right)),
        "acceptance": float(np.mean(lengths)),
        "blocks": len(lengths),
        "tokens": len(right),
    }


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (drafter_config(), SETTINGS),
        (drafter_config(), replace(SETTINGS, d_pace=0.3)),
        (drafter_config(conditioning="input", input_embedding_scale=2.0, final_logit_softcapping=3.0), SETTINGS),
        (drafter_config(conditioning="none", output_multiplier=1.5), SETTINGS),
    ],
    ids=["published", "D-PACE", "input", "none"],
)
def test_against_loops(config, settings, monkeypatch):
    monkeypatch.setattr(module, "_LOGITS", 1000)  # several chunks
    batch = packed_batch()
    loss, metrics = measured(config, settings, batch, KEY)
    found = {name: float(value) for name, value in metrics.items()}
    assert found == pytest.approx(expected(config, settings, batch), rel=1e-5)
    assert loss == metrics["loss"]


def test_features_that_are_given():
    batch = packed_batch()
    config = drafter_config()
    target = nnx.merge(TARGET.graphdef, TARGET.params)
    features = jnp.concatenate(target_features(target, batch, config.target_layer_ids), axis=-1)
    given = measured(config, SETTINGS, {**batch, FEATURES: features}, KEY)[0]
    assert float(given) == pytest.approx(float(measured(config, SETTINGS, batch, KEY)[0]), rel=1e-6)
    other = measured(config, SETTINGS, {**batch, FEATURES: 2 * features[..., ::-1]}, KEY)[0]
    assert float(given) != pytest.approx(float(other), rel=1e-3)


def drawn_anchors(settings, batch, key):
    draws = module._draws(settings, batch, key)
    blocks = module._draw_blocks(batch, draws, settings.anchors, BLOCK)
    return np.asarray(blocks.anchors), np.asarray(blocks.drawn)


def test_anchors_are_drawn_without_replacement_and_evenly():
    batch, settings = packed_batch(), replace(SETTINGS, anchors=3)
    candidates = np.asarray(module.anchor_candidates(batch))
    draw = jax.jit(lambda key: module._draw_blocks(batch, module._draws(settings, batch, key), 3, BLOCK)[:2])
    counts = np.zeros(candidates.shape)
    for number in range(300):
        anchors, drawn = map(np.asarray, draw(jax.random.key(number)))
        for row, (places, there) in enumerate(zip(anchors, drawn, strict=True)):
            assert there.sum() == min(3, candidates[row].sum())
            assert len(set(places[there])) == there.sum()
            counts[row, places[there]] += 1
    assert not counts[~candidates].any()
    for row, there in enumerate(candidates):
        share = min(3, there.sum()) / there.sum()
        deviation = 5 * np.sqrt(300 * share * (1 - share)) + 1e-9
        np.testing.assert_allclose(counts[row, there], 300 * share, atol=deviation)


def test_fixed_anchors_belong_to_the_row():
    batch = packed_batch()
    fixed = replace(SETTINGS, anchors=3, fixed_anchors=True)
    first, later = drawn_anchors(fixed, batch, KEY), drawn_anchors(fixed, batch, jax.random.key(9))
    np.testing.assert_array_equal(first[0], later[0])
    fresh = replace(fixed, fixed_anchors=False)
    assert not np.array_equal(drawn_anchors(fresh, batch, KEY)[0], drawn_anchors(fresh, batch, jax.random.key(9))[0])
    turned = {name: array[::-1] for name, array in batch.items()}
    np.testing.assert_array_equal(drawn_anchors(fixed, turned, KEY)[0][::-1], first[0])


def test_gamma_of_a_block_size():
    assert [default_gamma(size) for size in (16, 10, 8)] == [7.0, 5.0, 4.0]
    assert default_gamma(23) == pytest.approx(10.0)
