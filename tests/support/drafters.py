"""Small targets of every family that decodes autoregressively, and drafters for them, with random weights."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import jax.numpy as jnp
from flax import nnx
from random_decoder import CONFIGS, MOE, SCALED_ROTARY, random_decoder, small_config

from specdiff_jax.config import ModelConfig
from specdiff_jax.drafter_config import DraftAttention, DrafterConfig
from specdiff_jax.drafter_loading import Drafter
from specdiff_jax.loading import Model
from specdiff_jax.model.drafter import BlockDrafter

MASK, STOP = 39, 5
TARGETS: dict[str, ModelConfig] = {
    "llama": small_config(max_position_embeddings=4096),
    "qwen2": small_config(family="qwen2", qkv_bias=True, tie_embeddings=True, max_position_embeddings=512),
    "qwen3": small_config(family="qwen3", qk_norm=True, max_position_embeddings=512),
    "qwen3_moe": small_config(family="qwen3_moe", qk_norm=True, moe=MOE, max_position_embeddings=512),
    "nemotron_labs_diffusion": small_config(
        family="nemotron_labs_diffusion",
        rotary=SCALED_ROTARY,
        block_size=8,
        mask_token_id=MASK,
        max_position_embeddings=512,
    ),
}


@cache
def target(family: str, stop_ids: tuple[int, ...] = (STOP,)) -> Model:
    """A target; one of each kind, so that tests share what it has compiled."""
    decoder = random_decoder(TARGETS[family])
    return Model("tiny", decoder.config, decoder.graphdef, decoder.params, None, stop_ids)


def drafter_config(target_config: ModelConfig, **changes: Any) -> DrafterConfig:
    """Two layers, one that sees everything and one with a short causal window, which read both layers' features."""
    backbone = dataclasses.replace(
        CONFIGS["head norms, tied"],
        vocab_size=target_config.vocab_size,
        hidden_size=target_config.hidden_size,
        tie_embeddings=False,
    )
    settings: dict[str, Any] = {
        "backbone": backbone,
        "block_size": 16,
        "mask_token_id": MASK,
        "target_layer_ids": (1, 0),
        "attentions": (DraftAttention(), DraftAttention(window=6, causal=True)),
    }
    return DrafterConfig(**(settings | changes))


def drafter(config: DrafterConfig, seed: int = 0) -> Drafter:
    """A drafter with initial weights."""
    graphdef, params = nnx.split(BlockDrafter(config, dtype=jnp.float32, rngs=nnx.Rngs(seed)))
    return Drafter("small", config, graphdef, params)
