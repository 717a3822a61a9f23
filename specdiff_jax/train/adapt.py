"""An autoregressive model in the form of Fast-dLLM v2, to be trained as a diffusion model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx

from convert.params import named, with_arrays
from specdiff_jax.config import ModelConfig, parse_config
from specdiff_jax.errors import InputError
from specdiff_jax.loading import abstract_decoder

# What the other families' configs say beside the settings that Fast-dLLM v2 shares with them.
_DROPPED = ("attention_bias", "auto_map", "mlp_bias")


def fast_dllm_v2_config(config: Mapping[str, Any], block_size: int, mask_token_id: int, source: str) -> dict[str, Any]:
    """Content of config.json of the Fast-dLLM v2 model that a Llama or Qwen2 model becomes.

    Args:
        config: content of that model's config.json.
        block_size: tokens of a block.
        mask_token_id: a token of its vocabulary that no text has.
        source: what to call `config` in messages.

    Raises:
        InputError: the model is of another family, or has biases that Fast-dLLM v2 has no place for.
    """
    parsed = parse_config(config, source)
    if parsed.family not in ("llama", "qwen2"):
        raise InputError(f"{source}: a {parsed.family} model can't become fast_dllm_v2, only llama and qwen2 can")
    if parsed.output_bias or parsed.mlp_bias:
        raise InputError(f"{source}: attention_bias or mlp_bias is true, which fast_dllm_v2 has no place for")
    # What Llama may leave out, or the class would fill in otherwise.
    explicit: dict[str, Any] = {"num_key_value_heads": parsed.num_kv_heads, "head_dim": parsed.head_dim}
    explicit |= {"bos_token_id": parsed.bos_token_id, "eos_token_id": list(parsed.eos_token_ids)}
    if config.get("rope_parameters") is None:
        explicit["rope_theta"] = parsed.rotary.theta
    adapted = {
        **{key: value for key, value in config.items() if key not in _DROPPED},
        **explicit,
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "model_type": "Fast_dLLM_Qwen",
        "bd_size": block_size,
        "mask_token_id": mask_token_id,
    }
    if mask_token_id in parsed.eos_token_ids:
        raise InputError(f"model.mask_token_id={mask_token_id}: ends a text in {source}; choose an unused token")
    parse_config(adapted, source)
    return adapted


def with_zero_biases(params: nnx.State, config: ModelConfig, dtype: str) -> nnx.State:
    """The weights in the form of `config`: its biases are zero where the model had none.

    Args:
        params: weights of a model that differs from `config` in nothing but missing biases.
        config: settings of the adapted model.
        dtype: of the weights.
    """
    _, abstract = abstract_decoder(config, dtype, None)
    arrays: dict[str, Any] = dict(named(params))
    zeros = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in named(abstract).items() if name not in arrays}
    if any(not name.endswith("_bias") for name in zeros):
        raise ValueError(f"no weights for {', '.join(zeros)}")
    return with_arrays(abstract, {**arrays, **zeros})
