"""A block-diffusion geometry that is measured in no time."""

from __future__ import annotations

import dataclasses

from specdiff_jax.config import parse_config

TINY = dataclasses.replace(
    parse_config(
        {
            "architectures": ["Qwen2ForCausalLM"],
            "vocab_size": 97,
            "hidden_size": 48,
            "intermediate_size": 40,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
        },
        "tiny",
    ),
    family="nemotron_labs_diffusion",
    block_size=4,
    mask_token_id=96,
)
