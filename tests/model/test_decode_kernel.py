"""A decoder whose decode steps run through the kernel gives what plain JAX gives."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specdiff_jax.model.attention as attention
from pallas_kernels.decode_attention import decode_attention
from specdiff_jax.config import ModelConfig, RotaryConfig
from specdiff_jax.loading import abstract_decoder
from specdiff_jax.model import Decoder, empty_cache

SIZES = {
    "family": "nemotron_labs_diffusion",
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_layers": 2,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
}
FREQUENCIES = tuple(1e4 ** (-np.arange(0, 32, 2) / 32))


@pytest.mark.parametrize("qk_norm", [pytest.param(False, marks=pytest.mark.slow), True])
def test_kernel_steps_equal_plain_steps(monkeypatch, qk_norm):
    # A query scale that grows every 4 positions, so that it matters in a short text.
    rotary = RotaryConfig("default", 1e4, FREQUENCIES, query_scale_beta=0.5, original_max_position=4)
    config = ModelConfig(**SIZES, rotary=rotary, qk_norm=qk_norm, qkv_bias=True)
    monkeypatch.setattr(attention, "supports", lambda *_: True)
    calls = []

    def interpreted(*arguments):
        calls.append(arguments)
        return decode_attention(*arguments, interpret=True)

    monkeypatch.setattr(attention, "decode_attention", functools.wraps(decode_attention)(interpreted))
    plain = Decoder(config, dtype=jnp.float32, rngs=nnx.Rngs(0), implementation="xla")
    kernel = Decoder(config, dtype=jnp.float32, rngs=nnx.Rngs(0), implementation="triton")
    prompt = jnp.asarray([[3, 9, 27, 1, 50], [4, 8, 15, 16, 23]])
    cache = plain(prompt, empty_cache(config, 2, 96, jnp.float32)).cache.with_lengths(jnp.asarray([5, 3]))
    caches = {"plain": cache, "kernel": cache}
    for step in range(4):
        token = jnp.asarray([[step], [7 + step]])
        hidden = {}
        for name, decoder in (("plain", plain), ("kernel", kernel)):
            output = decoder(token, caches[name])
            hidden[name], caches[name] = output.hidden, output.cache.with_lengths(output.cache.lengths + 1)
        np.testing.assert_allclose(hidden["kernel"], hidden["plain"], atol=2e-5)
    assert len(calls) == 4 * config.num_layers


def test_dtype_names_choose_the_kernel(monkeypatch):
    config = ModelConfig(**SIZES, rotary=RotaryConfig("default", 1e4, FREQUENCIES))
    monkeypatch.setattr("specdiff_jax.loading.default_implementation", lambda devices: "triton")
    for dtype, expected in (("bfloat16", True), ("float32", False)):
        graphdef, abstract = abstract_decoder(config, dtype, None)
        assert nnx.merge(graphdef, abstract).layers[0].attention.decode_kernel is expected
