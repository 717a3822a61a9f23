"""The training forward of the drafter against its decoding form, and against a dense implementation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_drafter import BLOCK, drafter_config, random_block_drafter

from specdiff_jax.drafter_config import DraftAttention, DrafterConfig
from specdiff_jax.model import drafter_blocks, empty_cache
from specdiff_jax.model.attention import attend, flash_attend
from specdiff_jax.model.drafter import BlockDrafter
from specdiff_jax.model.drafter_blocks import PackedContext, by_chunks, fill_blocks
from specdiff_jax.model.rotary import rotary_table

LENGTHS = ((9, 7), (13,))
WIDTH = 18
ANCHORS = np.array([[3, 8, 12, 15, 0], [2, 5, 12, 7, 0]])
WINDOWED = (DraftAttention(), DraftAttention(window=5, causal=True), DraftAttention(window=3))
CONFIGS = {
    "full": drafter_config(),
    "windows": drafter_config(WINDOWED),
    "sinks, scaled values": drafter_config(attention_sinks=True, attention_value_scale=0.7),
    "input": drafter_config(WINDOWED, conditioning="input"),
    "none": drafter_config(conditioning="none", attention_sinks=True),
}


def packed() -> tuple[np.ndarray, np.ndarray]:
    """Positions and segments of a row of two texts and of a row of one, with padding behind both."""
    positions, segments = np.zeros((2, WIDTH), np.int32), np.zeros((2, WIDTH), np.int32)
    for row, lengths in enumerate(LENGTHS):
        begin = 0
        for number, length in enumerate(lengths, start=1):
            positions[row, begin : begin + length] = np.arange(length)
            segments[row, begin : begin + length] = number
            begin += length
    return positions, segments


def drawn(config: DrafterConfig) -> tuple[jax.Array, jax.Array]:
    """What the drafter reads of the tokens, and embeddings of blocks."""
    generator = np.random.default_rng(2)
    hidden = config.backbone.hidden_size
    context = generator.standard_normal((2, WIDTH, hidden), np.float32)
    embedded = generator.standard_normal((*ANCHORS.shape, BLOCK, hidden), np.float32)
    return jnp.asarray(context), jnp.asarray(embedded)


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DrafterConfig:
    """Settings, and chunks of two blocks."""
    monkeypatch.setattr(drafter_blocks, "_CHUNK_QUERIES", 2 * BLOCK)
    return CONFIGS[request.param]


def test_as_in_decoding(config: DrafterConfig) -> None:
    graphdef, params = random_block_drafter(config)
    positions, segments = packed()
    rows, embedded = drawn(config)

    @jax.jit
    def filled(params: nnx.State) -> jax.Array:
        context = PackedContext(rows, jnp.asarray(positions), jnp.asarray(segments))
        return fill_blocks(nnx.merge(graphdef, params), context, jnp.asarray(ANCHORS), embedded)

    @jax.jit
    def decoded(params: nnx.State, block: jax.Array, context: jax.Array, fresh: jax.Array) -> jax.Array:
        cache = empty_cache(config.backbone, 1, WIDTH + BLOCK, jnp.float32)
        return nnx.merge(graphdef, params)(block, context, fresh, cache).hidden

    found = filled(params)
    for row, number in np.ndindex(ANCHORS.shape):
        anchor = ANCHORS[row, number]
        place = positions[row, anchor]
        text = jnp.pad(rows[row, anchor - place : anchor], ((0, WIDTH - place), (0, 0)))
        expected = decoded(params, embedded[None, row, number], text[None], jnp.array([place]))
        np.testing.assert_allclose(found[row, number], expected[0], rtol=1e-5, atol=1e-5)


def dense(
    drafter: BlockDrafter, rows: jax.Array, positions: np.ndarray, segments: np.ndarray, embedded: jax.Array
) -> jax.Array:
    """All keys at once, a pattern made of loops; no chunks."""
    config, (batch, count) = drafter.config, ANCHORS.shape
    starts = np.take_along_axis(positions, ANCHORS, axis=1)
    places = (starts[..., None] + np.arange(BLOCK)).reshape(batch, -1)
    everywhere = np.concatenate([positions, places], axis=1)
    rotary = rotary_table(config.backbone.rotary, jnp.asarray(everywhere))
    x = jnp.concatenate([rows, embedded.reshape(batch, count * BLOCK, -1)], axis=1)
    for layer in drafter.layers:
        seen = np.zeros((batch, x.shape[1], x.shape[1]), bool)
        for row, query, key in np.ndindex(seen.shape):
            near = layer.sees.window is None or abs(everywhere[row, query] - everywhere[row, key]) < layer.sees.window
            if query < WIDTH:
                sees = key <= query and segments[row, query] == segments[row, key]
            elif key < WIDTH:
                anchor = ANCHORS[row, (query - WIDTH) // BLOCK]
                sees = key < anchor and segments[row, key] == segments[row, anchor]
            else:
                sees = (query - WIDTH) // BLOCK == (key - WIDTH) // BLOCK and not (layer.sees.causal and key > query)
            seen[row, query, key] = sees and near
        normed = layer.attention_norm(x)
        if config.conditioning == "key_value":
            normed = jnp.concatenate([rows, normed[:, WIDTH:]], axis=1)
        queries, keys, values = layer.heads(normed, rotary)
        sinks = None if layer.sinks is None else layer.sinks[...]
        x = layer.finish(x, attend(queries, keys, values, jnp.asarray(seen), sinks))
    return drafter.norm(x[:, WIDTH:]).reshape(embedded.shape)


def test_gradients_of_a_dense_implementation(config: DrafterConfig) -> None:
    graphdef, params = random_block_drafter(config)
    positions, segments = packed()
    rows, embedded = drawn(config)
    direction = np.random.default_rng(3).standard_normal(embedded.shape, np.float32)

    def chunked(params: nnx.State, rows: jax.Array) -> jax.Array:
        context = PackedContext(rows, jnp.asarray(positions), jnp.asarray(segments))
        return jnp.sum(direction * fill_blocks(nnx.merge(graphdef, params), context, jnp.asarray(ANCHORS), embedded))

    def whole(params: nnx.State, rows: jax.Array) -> jax.Array:
        return jnp.sum(direction * dense(nnx.merge(graphdef, params), rows, positions, segments, embedded))

    found = jax.jit(jax.grad(chunked, argnums=(0, 1)))(params, rows)
    expected = jax.jit(jax.grad(whole, argnums=(0, 1)))(params, rows)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5 * float(jnp.abs(theirs).max() + 1))


def test_flash_attention_gets_the_same_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*given: jax.Array) -> jax.Array:
        calls.append(given)
        return flash_attend(*given, implementation="xla")

    monkeypatch.setattr(drafter_blocks, "flash_attend", counted)
    config = CONFIGS["windows"]
    graphdef, params = random_block_drafter(config)
    rows, embedded = drawn(config)
    context = PackedContext(rows, *map(jnp.asarray, packed()))
    drafter = nnx.merge(graphdef, params)
    plain = fill_blocks(drafter, context, jnp.asarray(ANCHORS), embedded)
    for layer in drafter.layers:
        layer.attention.flash = True
    flash = fill_blocks(drafter, context, jnp.asarray(ANCHORS), embedded)
    assert len(calls) == len(WINDOWED)
    np.testing.assert_allclose(flash, plain, rtol=1e-5, atol=1e-5)


def test_no_scores_of_all_blocks_exist() -> None:
    config = drafter_config()
    graphdef, params = random_block_drafter(config)
    count = 400
    anchors, embedded = jnp.zeros((1, count), jnp.int32), jnp.zeros((1, count, BLOCK, config.backbone.hidden_size))
    context = PackedContext(
        jnp.zeros((1, WIDTH, config.backbone.hidden_size)),
        jnp.zeros((1, WIDTH), jnp.int32),
        jnp.ones((1, WIDTH), jnp.int32),
    )

    def loss(params: nnx.State) -> jax.Array:
        return jnp.sum(fill_blocks(nnx.merge(graphdef, params), context, anchors, embedded))

    program = jax.jit(jax.grad(loss)).lower(params).compile()
    scores = 4 * config.backbone.num_heads * (count * BLOCK) ** 2
    assert program.memory_analysis().temp_size_in_bytes < scores / 2


def test_chunks_cover_everything_once() -> None:
    array = jnp.arange(2.0 * 7 * 3).reshape(2, 7, 3)
    doubled, total = by_chunks(lambda part, other: (2 * part, other.sum(-1)), (array, array), 3)
    np.testing.assert_array_equal(doubled, 2 * array)
    np.testing.assert_array_equal(total, array.sum(-1))
