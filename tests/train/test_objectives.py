"""Objectives against plain loops, and against the decoder as it decodes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_decoder import RandomDecoder, random_decoder, small_config

from specdiff_jax.block_spec import BlockSpec, block_spec
from specdiff_jax.config import ModelConfig
from specdiff_jax.model import empty_cache
from specdiff_jax.train.examples import Example
from specdiff_jax.train.objectives import (
    Batch,
    Objective,
    commit_pattern,
    complementary_masks,
    cross_entropy,
    denoising_pattern,
    fast_dllm_v2,
    forwards,
    nemotron,
    next_token,
)
from specdiff_jax.train.packing import pack

BLOCK, MASK, STOP, WIDTH = 4, 39, 0, 24
FAST = small_config(family="fast_dllm_v2", block_size=BLOCK, mask_token_id=MASK, qkv_bias=True)
NEMOTRON = small_config(family="nemotron_labs_diffusion", block_size=BLOCK, mask_token_id=MASK)
CONFIGS = {"fast_dllm_v2": FAST, "nemotron": NEMOTRON}
# One layer, whose gradient compiles sooner.
OBJECTIVES = {
    "fast_dllm_v2": (replace(FAST, num_layers=1), fast_dllm_v2(block_spec(FAST))),
    "fast_dllm_v2, published": (replace(FAST, num_layers=1), fast_dllm_v2(block_spec(FAST), clean_seed=False)),
    "nemotron": (replace(NEMOTRON, num_layers=1), nemotron(block_spec(NEMOTRON), 0.3, 2.0)),
    "next_token": (small_config(num_layers=1), next_token()),
}
KEY = jax.random.key(3)


@cache
def texts() -> tuple[Example, ...]:
    """Prompts that end inside of a block, at its end and with the first token; responses of one to three blocks."""
    generator = np.random.default_rng(0)
    lengths = [(3, 4), (4, 7), (1, 1), (6, 5), (0, 6)]
    drawn = [(generator.integers(1, 39, prompt), generator.integers(1, 39, answer)) for prompt, answer in lengths]
    return tuple(Example(tuple(prompt.tolist()), (*answer.tolist(), STOP)) for prompt, answer in drawn)


def packed_batch(spec: BlockSpec | None) -> dict[str, np.ndarray]:
    """The texts in three rows, as numpy arrays; the last row is all padding where they need only two."""
    packed = pack(texts(), WIDTH, spec, STOP)
    assert (packed.segments.max(axis=1) > 1).sum() == 2, "several texts in a row"
    assert (packed.segments == 0).any(), "some padding"
    return {
        part: np.pad(rows, ((0, 3 - packed.rows), (0, 0))) for part, rows in packed.take(np.arange(packed.rows)).items()
    }


def spec_of(config: ModelConfig) -> BlockSpec | None:
    return None if config.block_size is None else block_spec(config)


def on_device(batch: Any) -> Any:
    return jax.tree.map(jnp.asarray, batch)


@partial(jax.jit, static_argnums=(0, 1))
def value_and_grad(
    objective: Objective, graphdef: nnx.GraphDef, params: nnx.State, batch: Batch, key: jax.Array
) -> tuple[tuple[jax.Array, dict[str, jax.Array]], nnx.State]:
    return jax.value_and_grad(lambda params: objective(nnx.merge(graphdef, params), batch, key), has_aux=True)(params)


# What each row sees, from the definition.


def clean_row_sees(batch: dict[str, np.ndarray], row: int, query: int, key: int, causal: bool) -> bool:
    if batch["segments"][row, query] != batch["segments"][row, key]:
        return False
    return key <= query if causal else batch["blocks"][row, key] <= batch["blocks"][row, query]


def noisy_row_sees_clean(batch: dict[str, np.ndarray], row: int, query: int, key: int) -> bool:
    same_text = batch["segments"][row, query] == batch["segments"][row, key]
    return same_text and batch["blocks"][row, key] < batch["blocks"][row, query]


def noisy_row_sees_noisy(batch: dict[str, np.ndarray], row: int, query: int, key: int) -> bool:
    same_text = batch["segments"][row, query] == batch["segments"][row, key]
    return same_text and batch["blocks"][row, key] == batch["blocks"][row, query]


@pytest.mark.parametrize("name", CONFIGS)
def test_patterns(name: str) -> None:
    spec = block_spec(CONFIGS[name])
    batch = packed_batch(spec)
    commit = np.asarray(commit_pattern(on_device(batch), spec.causal))
    denoising = np.asarray(denoising_pattern(on_device(batch)))
    rows = len(batch["tokens"])
    assert commit.shape == (rows, WIDTH, WIDTH)
    assert denoising.shape == (rows, WIDTH, 2 * WIDTH)
    for row, query, key in np.ndindex(rows, WIDTH, WIDTH):
        assert commit[row, query, key] == clean_row_sees(batch, row, query, key, spec.causal)
        assert denoising[row, query, key] == noisy_row_sees_clean(batch, row, query, key)
        assert denoising[row, query, WIDTH + key] == noisy_row_sees_noisy(batch, row, query, key)
    assert commit.any(axis=-1).all(), "every row sees something, padding too"
    assert denoising.any(axis=-1).all()


# The published form: one forward over [x_t | x_0] for each copy, and loops over the tokens.


def published_logits(
    model: RandomDecoder, batch: dict[str, np.ndarray], noisy: np.ndarray, causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of x_t and of x_0."""
    rows = len(noisy)
    seen = np.zeros((rows, 2 * WIDTH, 2 * WIDTH), bool)
    for row, query, key in np.ndindex(rows, WIDTH, WIDTH):
        seen[row, query, key] = noisy_row_sees_noisy(batch, row, query, key)
        seen[row, query, WIDTH + key] = noisy_row_sees_clean(batch, row, query, key)
        seen[row, WIDTH + query, WIDTH + key] = clean_row_sees(batch, row, query, key, causal)
    tokens = np.concatenate([noisy, batch["tokens"]], axis=1)
    positions = np.concatenate([batch["positions"]] * 2, axis=1)
    logits = whole_forward(model.graphdef, model.params, tokens, seen, positions)
    return np.asarray(logits[:, :WIDTH], np.float64), np.asarray(logits[:, WIDTH:], np.float64)


@partial(jax.jit, static_argnums=0)
def whole_forward(
    graphdef: nnx.GraphDef, params: nnx.State, tokens: jax.Array, visible: jax.Array, positions: jax.Array
) -> jax.Array:
    decoder = nnx.merge(graphdef, params)
    return decoder.logits(decoder(tokens, visible=visible, positions=positions).hidden)


def mean_loss(terms: list[tuple[np.ndarray, int]]) -> tuple[float, float]:
    """Mean cross-entropy and accuracy of (logits, token) pairs."""
    losses = [np.log(np.exp(logits).sum()) - logits[token] for logits, token in terms]
    return float(np.mean(losses)), float(np.mean([logits.argmax() == token for logits, token in terms]))


@pytest.mark.parametrize("name", ["fast_dllm_v2", "fast_dllm_v2, published", "nemotron"])
def test_loss_of_the_published_form(name: str) -> None:
    config, objective = OBJECTIVES[name]
    spec, model = block_spec(config), random_decoder(config)
    batch = packed_batch(spec)
    kept_first = name != "fast_dllm_v2, published"
    cells = [cell for cell in np.ndindex(*batch["tokens"].shape) if batch["response"][cell]]
    is_first = {
        (row, column): column == 0 or batch["blocks"][row, column - 1] != batch["blocks"][row, column]
        for row, column in cells
    }
    maskable = np.zeros(batch["tokens"].shape, bool)
    for cell in cells:
        maskable[cell] = batch["positions"][cell] > 0 and not (kept_first and is_first[cell])
    copies = [
        np.asarray(mask) for mask in complementary_masks(KEY, jnp.asarray(maskable), jnp.asarray(batch["blocks"]))
    ]
    denoised, seeds, following = [], [], []
    for copy, mask in enumerate(copies):
        assert mask.any()
        noisy = np.where(mask, MASK, batch["tokens"])
        of_noisy, of_clean = published_logits(model, batch, noisy, spec.causal)
        for row, column in cells:
            token = batch["tokens"][row, column]
            if mask[row, column]:
                denoised.append((of_noisy[row, column - 1 if spec.token_shift else column], token))
            if copy == 0 and batch["positions"][row, column] > 0:
                following.append((of_clean[row, column - 1], token))
                if is_first[row, column]:
                    seeds.append((of_clean[row, column - 1], token))
    (loss, metrics), _ = value_and_grad(objective, model.graphdef, model.params, batch, KEY)
    close = partial(np.testing.assert_allclose, rtol=1e-5)
    close(metrics["masked_accuracy"], mean_loss(denoised)[1])
    assert metrics["tokens"] == len(following)
    if name == "nemotron":
        close(metrics["diffusion_loss"], mean_loss(denoised)[0])
        close(metrics["next_token_loss"], mean_loss(following)[0])
        close(metrics["next_token_accuracy"], mean_loss(following)[1])
        close(loss, 0.3 * mean_loss(denoised)[0] + 2.0 * mean_loss(following)[0])
    elif kept_first:
        close(metrics["seed_accuracy"], mean_loss(seeds)[1])
        close(loss, mean_loss(denoised + seeds)[0])
    else:
        close(loss, mean_loss(denoised)[0])
    assert loss == metrics["loss"]
    assert loss.dtype == jnp.float32


def test_loss_of_next_tokens() -> None:
    config, objective = OBJECTIVES["next_token"]
    model = random_decoder(config)
    batch = packed_batch(None)
    terms = []
    for text in texts():
        ids = np.array([*text.prompt, *text.response])
        logits, _ = model.truth(ids, np.tri(len(ids), dtype=bool))
        terms += [(logits[place - 1], ids[place]) for place in range(max(len(text.prompt), 1), len(ids))]
    (loss, metrics), _ = value_and_grad(objective, model.graphdef, model.params, batch, KEY)
    np.testing.assert_allclose(loss, mean_loss(terms)[0], rtol=1e-5)
    np.testing.assert_allclose(metrics["next_token_accuracy"], mean_loss(terms)[1], rtol=1e-5)
    assert metrics["tokens"] == len(terms)


# What training sees of a block is what decoding sees of it.


@pytest.mark.parametrize("name", CONFIGS)
def test_blocks_are_trained_as_they_are_decoded(name: str) -> None:
    config = CONFIGS[name]
    spec, model = block_spec(config), random_decoder(config)
    batch = packed_batch(spec)
    masked, complement = complementary_masks(KEY, *on_device((batch["response"], batch["blocks"])))
    trained = trained_logits(model.graphdef, spec, model.params, batch, masked, complement)
    canvases = [np.where(mask, MASK, batch["tokens"]) for mask in (masked, complement)]
    blocks_seen = 0
    for row in range(len(batch["tokens"])):
        for segment in range(1, batch["segments"][row].max() + 1):
            place = np.flatnonzero(batch["segments"][row] == segment)
            cached = empty_cache(config, 1, WIDTH, jnp.float32)
            for start, size in steps(batch["blocks"][row, place]):
                columns = place[start : start + size]
                cached = cached.with_lengths(jnp.array([start]))
                whole = np.full((1, size), start + size, np.int32)
                if size == BLOCK:
                    blocks_seen += 1
                    for part, canvas in zip(("masked", "complement"), canvases, strict=True):
                        decoded = model.run(canvas[row, columns][None], cached, visible=whole).logits[0]
                        np.testing.assert_allclose(trained[part][row, columns], decoded, atol=1e-5)
                committed = model.run(
                    batch["tokens"][row, columns][None], cached, visible=None if spec.causal else whole
                )
                np.testing.assert_allclose(trained["clean"][row, columns], committed.logits[0], atol=1e-5)
                cached = committed.cache
    assert blocks_seen == batch["response"].sum() // BLOCK if spec.causal else (batch["blocks"] >= 0).sum() // BLOCK


@partial(jax.jit, static_argnums=(0, 1))
def trained_logits(
    graphdef: nnx.GraphDef, spec: BlockSpec, params: nnx.State, batch: Batch, masked: jax.Array, complement: jax.Array
) -> dict[str, jax.Array]:
    decoder = nnx.merge(graphdef, params)
    hidden = forwards(decoder, batch, masked, complement, spec)
    return {part: decoder.logits(rows) for part, rows in hidden._asdict().items()}


def steps(blocks: np.ndarray) -> list[tuple[int, int]]:
    """Start and size of what decoding commits at once: a token of a prompt outside of blocks, or a block."""
    outside = int((blocks < 0).sum())
    return [(start, 1) for start in range(outside)] + [(start, BLOCK) for start in range(outside, len(blocks), BLOCK)]


# Masks.


def test_masks_are_complementary_and_each_block_has_a_ratio_of_its_own() -> None:
    size, count = 50, 200
    blocks = jnp.repeat(jnp.arange(count), size)[None]
    maskable = jnp.arange(size * count)[None] % 5 > 0
    masked, complement = complementary_masks(jax.random.key(0), maskable, blocks)
    assert not (masked & complement).any()
    np.testing.assert_array_equal(masked | complement, maskable)
    shares = np.asarray(masked.reshape(count, size).sum(axis=1) / (size * 0.8))
    # Uniform from 0 to 1: mean 1/2, variance 1/12, and 1/(6 * 40) more from drawing 40 tokens.
    assert abs(shares.mean() - 0.5) < 0.06
    assert abs(shares.var() - 1 / 12 - 1 / 240) < 0.02
    other, _ = complementary_masks(jax.random.key(1), maskable, blocks)
    assert (masked != other).any()


def test_rows_of_a_batch_are_masked_apart() -> None:
    blocks = jnp.zeros((2, 64), jnp.int32)
    masked, _ = complementary_masks(jax.random.key(0), blocks == 0, blocks)
    assert (masked[0] != masked[1]).any()


# Gradients.


def test_cross_entropy() -> None:
    generator = np.random.default_rng(0)
    logits = 30 * generator.standard_normal((3, 5, 7), np.float32)
    targets = jnp.asarray(generator.integers(0, 7, (3, 5)))
    losses, slopes = jax.jit(jax.vmap(jax.vmap(jax.value_and_grad(cross_entropy))))(logits, targets)
    for cell in np.ndindex(3, 5):
        powers = np.exp(logits[cell].astype(np.float64))
        shares = powers / powers.sum()
        np.testing.assert_allclose(losses[cell], -np.log(shares[targets[cell]]), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(slopes[cell], shares - np.eye(7)[targets[cell]], atol=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_add_nothing_up_by_scattering(name: str) -> None:
    config, objective = OBJECTIVES[name]
    model = random_decoder(config)
    batch = packed_batch(spec_of(config))
    traced = jax.make_jaxpr(partial(value_and_grad, objective, model.graphdef))(model.params, batch, KEY)
    assert "scatter-add" not in str(traced)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_descent_lowers_the_loss(name: str) -> None:
    config, objective = OBJECTIVES[name]
    model = random_decoder(config)
    batch, params = packed_batch(spec_of(config)), model.params
    losses = []
    for _ in range(6):
        (loss, _), gradient = value_and_grad(objective, model.graphdef, params, batch, KEY)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
        losses.append(float(loss))
        params = jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, params, gradient)
    assert losses[-1] < 0.9 * losses[0], losses


@pytest.mark.parametrize("name", OBJECTIVES)
def test_bfloat16_parameters_give_a_float32_loss(name: str) -> None:
    config, objective = OBJECTIVES[name]
    model = random_decoder(config)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model.params)
    (loss, _), gradient = jax.eval_shape(
        partial(value_and_grad, objective, model.graphdef), params, packed_batch(spec_of(config)), KEY
    )
    assert loss.dtype == jnp.float32
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(gradient))


def test_a_batch_without_responses_has_no_loss() -> None:
    config, objective = OBJECTIVES["nemotron"]
    model = random_decoder(config)
    batch = packed_batch(block_spec(config))
    batch["response"] = np.zeros_like(batch["response"])
    (loss, metrics), _ = value_and_grad(objective, model.graphdef, model.params, batch, KEY)
    assert (loss, metrics["tokens"]) == (0, 0)
