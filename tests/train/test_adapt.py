"""A Llama in the form of Fast-dLLM v2."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import save_family

from specdiff_jax.config import parse_config
from specdiff_jax.errors import InputError
from specdiff_jax.loading import abstract_decoder, load
from specdiff_jax.train.adapt import fast_dllm_v2_config, with_zero_biases


def read(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_the_adapted_model_computes_the_same(tmp_path, family):
    save_family(family, tmp_path)
    model = load(tmp_path)
    config = parse_config(fast_dllm_v2_config(read(tmp_path), 8, 3, "here"), "adapted")
    assert (config.family, config.block_size, config.mask_token_id) == ("fast_dllm_v2", 8, 3)
    assert (config.eos_token_ids, config.rotary) == (model.config.eos_token_ids, model.config.rotary)
    graphdef, _ = abstract_decoder(config, "float32", None)
    tokens = jnp.arange(12)[None]
    found, expected = (
        module.logits(module(tokens).hidden)
        for module in (
            nnx.merge(graphdef, with_zero_biases(model.params, config, "float32")),
            nnx.merge(model.graphdef, model.params),
        )
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_other_models_are_refused(tmp_path):
    save_family("Llama with biases", tmp_path / "llama")
    with pytest.raises(InputError, match="attention_bias or mlp_bias is true"):
        fast_dllm_v2_config(read(tmp_path / "llama"), 8, 3, "here")
    save_family("Qwen3", tmp_path / "qwen3")
    with pytest.raises(InputError, match="a qwen3 model can't become fast_dllm_v2"):
        fast_dllm_v2_config(read(tmp_path / "qwen3"), 8, 3, "here")
    save_family("Qwen2", tmp_path / "qwen2")
    with pytest.raises(InputError, match="mask_token_id 50 is not in the vocabulary"):
        fast_dllm_v2_config(read(tmp_path / "qwen2"), 8, 50, "here")
