"""Small drafters with random weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from random_decoder import small_config

from specdiff_jax.drafter_config import DraftAttention, DrafterConfig
from specdiff_jax.model.drafter import BlockDrafter

BLOCK, MASK = 4, 39


def drafter_config(attentions: tuple[DraftAttention, ...] = (DraftAttention(), DraftAttention()), **changes: Any):
    """A drafter for `small_config` that reads both of its layers."""
    backbone = small_config(num_layers=len(attentions), qk_norm=True)
    settings: dict[str, Any] = {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": (0, 1)}
    return DrafterConfig(backbone=backbone, attentions=attentions, **(settings | changes))


def random_block_drafter(config: DrafterConfig) -> tuple[nnx.GraphDef, nnx.State]:
    """A float32 drafter in which every weight is random, also norms and sinks."""
    graphdef, shapes = nnx.split(nnx.eval_shape(lambda: BlockDrafter(config, dtype=jnp.float32, rngs=nnx.Rngs(0))))
    generator = np.random.default_rng(1)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        values = generator.standard_normal(leaf.shape, np.float32)
        return jnp.asarray(1 + 0.3 * values if len(leaf.shape) == 1 else values * leaf.shape[-1] ** -0.5)

    return graphdef, jax.tree.map(draw, shapes)
