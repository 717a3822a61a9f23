"""Small targets of every family that decodes autoregressively, and drafters for them: random ones, and one that knows
what the target will say.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from random_decoder import MOE, SCALED_ROTARY, random_decoder, random_weights, small_config

from specdiff_jax.config import ModelConfig
from specdiff_jax.decode import dflash
from specdiff_jax.drafter_config import DraftAttention, DrafterConfig
from specdiff_jax.drafter_loading import Drafter
from specdiff_jax.loading import Model
from specdiff_jax.model import Decoder, KVCache
from specdiff_jax.model.drafter import BlockDrafter
from specdiff_jax.rotary_config import RotaryConfig

MASK, STOP = 39, 5
TARGETS: dict[str, ModelConfig] = {
    "llama": small_config(max_position_embeddings=512),
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
Draft = Callable[[Decoder, BlockDrafter, dflash.DFlashState], tuple[jax.Array, KVCache]]


@cache
def target_of(family: str) -> Model:
    """A target; one of each kind, so that tests share what it has compiled."""
    decoder = random_decoder(TARGETS[family])
    return Model("tiny", decoder.config, decoder.graphdef, decoder.params, None, (STOP,))


def drafter_config(target: ModelConfig, **changes: Any) -> DrafterConfig:
    """Two layers, one that sees everything and one with a short causal window; features of both layers."""
    backbone = small_config(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        num_kv_heads=1,
        qk_norm=True,
        rotary=RotaryConfig("default", 1000.0, tuple(1000.0 ** -(i / 4) for i in range(4))),
    )
    settings: dict[str, Any] = {
        "backbone": backbone,
        "block_size": 8,
        "mask_token_id": MASK,
        "target_layer_ids": (1, 0),
        "attentions": (DraftAttention(), DraftAttention(window=6, causal=True)),
    }
    return DrafterConfig(**(settings | changes))


def drafter_of(target: Model, seed: int = 0, **changes: Any) -> Drafter:
    """A drafter with random weights, whole on each of the target's devices."""
    config = drafter_config(target.config, **changes)
    graphdef, shapes = nnx.split(nnx.eval_shape(lambda: BlockDrafter(config, dtype=jnp.float32, rngs=nnx.Rngs(0))))
    params = random_weights(shapes, config.backbone.hidden_size, seed)
    if target.mesh is not None:
        params = jax.device_put(params, NamedSharding(target.mesh, PartitionSpec()))
    return Drafter("small", config, graphdef, params)


def knowing(wrong: Callable[[dflash.DFlashState], jax.Array]) -> Draft:
    """In place of `dflash.draft`: the target's own most likely tokens, but for the draft of each row that `wrong` names
    (one that is beyond the drafts spoils none).
    """
    drafted = dflash.draft

    def draft(model: Decoder, drafter: BlockDrafter, state: dflash.DFlashState) -> tuple[jax.Array, KVCache]:
        def one(carry: tuple[KVCache, jax.Array], _: None) -> tuple[tuple[KVCache, jax.Array], jax.Array]:
            cache, tokens = carry
            output = model(tokens[:, None], cache)
            found = jnp.argmax(model.logits(output.hidden[:, 0]), axis=-1).astype(jnp.int32)
            return (output.cache.with_lengths(cache.lengths + 1), found), found

        count = state.context.shape[1] - 1
        tokens = jax.lax.scan(one, (state.cache, state.newest), length=count)[1].T
        spoilt = jnp.arange(count) == wrong(state)[:, None]
        return (tokens + spoilt) % model.config.vocab_size, drafted(model, drafter, state)[1]

    return draft
