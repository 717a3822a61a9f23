"""Fused attention over patterns equals the plain one, with its gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_decoder import small_config

from specdiff_jax.model import Decoder
from specdiff_jax.model.attention import attend, flash_attend, supports_flash

BATCH, ROWS, KEYS, KV_HEADS, SIZE = 3, 10, 24, 2, 32


def drawn(group: int, dtype: str) -> tuple[jax.Array, ...]:
    keys = jax.random.split(jax.random.key(group), 4)
    queries = jax.random.normal(keys[0], (BATCH, ROWS, KV_HEADS, group, SIZE), dtype)
    shape = (BATCH, KV_HEADS, KEYS, SIZE)
    visible = jax.random.bernoulli(keys[3], 0.4, (BATCH, ROWS, KEYS)).at[..., 3].set(True)
    return queries, jax.random.normal(keys[1], shape, dtype), jax.random.normal(keys[2], shape, dtype), visible


def with_gradients(function, queries, keys, values, visible):
    """Output and the gradients of a sum whose terms weigh differently."""

    def total(*inputs):
        output = function(*inputs, visible).astype(jnp.float32)
        return jnp.sum(output * jnp.cos(jnp.arange(output.size, dtype=jnp.float32)).reshape(output.shape)), output

    (_, output), gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))(queries, keys, values)
    return [np.asarray(array, np.float32) for array in (output, *gradients)]


@pytest.mark.parametrize("group", [1, 3])
def test_heads_and_pattern_are_placed_as_the_kernel_takes_them(group: int):
    inputs = drawn(group, "float32")
    expected = with_gradients(attend, *inputs)
    found = with_gradients(lambda *given: flash_attend(*given, implementation="xla"), *inputs)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_decoder_takes_it_for_patterns_alone(monkeypatch: pytest.MonkeyPatch):
    calls = []

    def counted(*inputs):
        calls.append(inputs[0].shape)
        return flash_attend(*inputs, implementation="xla")

    monkeypatch.setattr("specdiff_jax.model.attention.flash_attend", counted)
    config = small_config(head_dim=8)
    plain, flash = (
        Decoder(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0), implementation=name) for name in ("xla", "triton")
    )
    tokens = jnp.arange(12, dtype=jnp.int32).reshape(2, 6)
    pattern = jax.random.bernoulli(jax.random.key(0), 0.5, (2, 6, 6)) | jnp.eye(6, dtype=bool)
    found, expected = (np.asarray(model(tokens, visible=pattern).hidden, np.float32) for model in (flash, plain))
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05)
    assert len(calls) == config.num_layers
    flash(tokens)
    flash(tokens[:, :5], visible=pattern[:, :5, :5])
    assert len(calls) == config.num_layers, "counts of keys, and odd numbers of rows, go the plain way"


@pytest.mark.gpu
@pytest.mark.parametrize("group", [1, 2, 3])
def test_gpu_kernel_equals_plain_attention(group: int):
    queries, keys, values, visible = drawn(group, "bfloat16")
    exact = [array.astype(jnp.float32) for array in (queries, keys, values)]
    expected = with_gradients(attend, *exact, visible)
    for mine, theirs in zip(with_gradients(flash_attend, queries, keys, values, visible), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0.03, atol=0.03)


def test_shapes_that_the_kernel_does_not_take_are_known():
    assert supports_flash(64, "bfloat16")
    assert not supports_flash(64, "float32")
    assert not supports_flash(36, "bfloat16")
    assert not supports_flash(256, "bfloat16")
