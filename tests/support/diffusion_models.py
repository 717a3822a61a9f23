"""Small block-diffusion models with random weights, as a loaded target and as tensors for the oracles."""

from __future__ import annotations

import dataclasses
from functools import cache

import block_oracle
import jax
import numpy as np
from random_decoder import SCALED_ROTARY, RandomDecoder, random_decoder, small_config

from specdiff_jax.loading import Model

MASK, STOP, BLOCK = 39, 5, 8
SHARPNESS = 4.0  # of the head: random logits are so flat that no token would pass a threshold
SUB_BLOCK = {"fast_dllm_v2": 4, "nemotron_labs_diffusion": BLOCK}
FAMILIES = list(SUB_BLOCK)


@cache
def diffusion_decoder(family: str, layers: int = 2) -> RandomDecoder:
    """A decoder of a family, with a sharp head."""
    changes = {"qkv_bias": True} if family == "fast_dllm_v2" else {"rotary": SCALED_ROTARY}
    config = small_config(
        family=family,
        block_size=BLOCK,
        mask_token_id=MASK,
        max_position_embeddings=512,
        num_layers=layers,
        **changes,
    )
    plain = random_decoder(config)
    params = jax.tree.map(lambda leaf: leaf, plain.params)
    params["head"] = params["head"].replace(SHARPNESS * params["head"].get_value())
    tensors = {**plain.tensors, "lm_head.weight": SHARPNESS * plain.tensors["lm_head.weight"]}
    return dataclasses.replace(plain, params=params, tensors=tensors)


@cache
def diffusion_model(family: str, layers: int = 2) -> Model:
    """That decoder as a loaded target; one of each kind, so that tests share what it has compiled."""
    decoder = diffusion_decoder(family, layers)
    return Model("tiny", decoder.config, decoder.graphdef, decoder.params, None, (STOP,))


def random_prompts(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Prompts of 1 to `longest` tokens."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, MASK, length).tolist() for length in generator.integers(1, longest + 1, count)]


def oracle_rules(family: str, threshold: float, limit: int) -> block_oracle.Rules:
    """The rules of a family's models for the oracles."""
    return block_oracle.Rules(BLOCK, MASK, (STOP,), threshold, limit, SUB_BLOCK[family])
