"""A draft through kernels, interpreted in float32 where there is no GPU, against plain JAX."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_decoder import small_config

from pallas_kernels.triton import attention, launch
from specdiff_jax.drafter_config import DraftAttention, DrafterConfig
from specdiff_jax.model.cache import KVCache, empty_cache
from specdiff_jax.model.drafter import BlockDrafter

SLOTS, ROWS, CAPACITY = 4, 5, 24
CACHED, FRESH = jnp.array([0, 9, 4]), jnp.array([5, 1, 0])
BACKBONE = small_config(qk_norm=True)
FULL, CAUSAL, NEAR = DraftAttention(), DraftAttention(causal=True), DraftAttention(window=3)
CONFIG = DrafterConfig(BACKBONE, SLOTS, 39, (0, 1), (FULL, CAUSAL))


def drafter(config: DrafterConfig, implementation: str) -> BlockDrafter:
    """The same weights in either implementation, norms of heads too."""
    built = BlockDrafter(config, dtype=jnp.float32, rngs=nnx.Rngs(0), implementation=implementation)
    graphdef, params = nnx.split(built)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    moved = [leaf + 0.2 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return nnx.merge(graphdef, jax.tree.unflatten(tree, moved))


def rows(seed: int, count: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (CACHED.size, count, BACKBONE.hidden_size))


def remembered(plain: BlockDrafter) -> KVCache:
    empty = empty_cache(replace(BACKBONE, num_layers=2), CACHED.size, CAPACITY, jnp.float32)
    return plain.remember(rows(2, 9), empty).with_lengths(CACHED)


@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
def test_drafts_are_those_of_plain_jax(monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    """With own lengths and own numbers of fresh rows; what doesn't count of the context is garbage."""
    monkeypatch.setattr(launch, "INTERPRET", jax.default_backend() != "gpu")
    monkeypatch.setattr(attention, "supports", lambda *_: True)
    config = replace(CONFIG, backbone=replace(BACKBONE, qkv_bias=bias, output_bias=bias))
    plain, kernels = drafter(config, "xla"), drafter(config, "triton")
    assert [layer.kernels for layer in kernels.layers] == [True, True]
    given = rows(3, SLOTS), rows(4, ROWS).at[:, 1:].multiply(1e3), FRESH, remembered(plain)
    ours, theirs = jax.jit(kernels)(*given), jax.jit(plain)(*given)
    np.testing.assert_allclose(ours.hidden, theirs.hidden, atol=1e-5)
    np.testing.assert_array_equal(ours.cache.lengths, CACHED + FRESH)
    for row, length in enumerate(CACHED + FRESH):
        for mine, truth in zip(jax.tree.leaves(ours.cache), jax.tree.leaves(theirs.cache), strict=True):
            if mine.ndim > 1:
                np.testing.assert_allclose(mine[row][:, :length], truth[row][:, :length], atol=1e-5)


@pytest.mark.gpu
def test_at_full_size_in_bfloat16() -> None:
    """Shapes of Qwen3-8B, a cache on both sides of the length from which attention takes two launches."""
    backbone = small_config(
        qk_norm=True, hidden_size=4096, intermediate_size=12288, num_heads=32, num_kv_heads=8, head_dim=128
    )
    half = backbone.head_dim // 2
    rotary = replace(backbone.rotary, theta=1e6, inverse_frequencies=tuple(1e6 ** -(i / half) for i in range(half)))
    config = DrafterConfig(replace(backbone, rotary=rotary), 16, 39, (0, 1), (FULL, FULL))
    plain, kernels = (
        BlockDrafter(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0), implementation=by) for by in ("xla", "triton")
    )
    assert [layer.kernels for layer in kernels.layers] == [True, True]
    for capacity, length in ((640, 512), (4096, 3000)):
        keys = jax.random.split(jax.random.key(capacity), 3)
        context, block = (jax.random.normal(key, (2, 16, 4096), jnp.bfloat16) for key in keys[:2])
        heads = (jax.random.normal(keys[2], (2, 8, capacity, 128), jnp.bfloat16),) * 2
        cache = KVCache(heads, heads, jnp.array([length, 7]))
        ours, theirs = (jax.jit(by)(block, context, jnp.array([3, 16]), cache).hidden for by in (kernels, plain))
        ours, theirs = (np.asarray(hidden, np.float64) for hidden in (ours, theirs))
        assert np.linalg.norm(ours - theirs) < 1e-2 * np.linalg.norm(theirs)


@pytest.mark.parametrize(
    "change",
    [
        {"attentions": (FULL, NEAR)},
        {"attention_sinks": True},
        {"attention_value_scale": 0.5},
        {"conditioning": "input"},
        {"backbone": replace(BACKBONE, rotary=replace(BACKBONE.rotary, inverse_frequencies=(1.0,)))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_kernels_do_not_take_runs_in_plain_jax(monkeypatch: pytest.MonkeyPatch, change: dict[str, object]) -> None:
    monkeypatch.setattr(attention, "supports", lambda *_: True)
    assert not drafter(replace(CONFIG, **change), "triton").layers[1].kernels
