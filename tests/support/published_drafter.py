"""Small drafters with random weights under their published names, and the module with the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import drafter_oracle
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from random_decoder import ROTARY, small_config

from convert.drafter_names import load_drafter_parameters
from convert.tensors import TensorInfo
from specdiff_jax.drafter_config import DraftAttention, DrafterConfig
from specdiff_jax.drafter_loading import abstract_drafter
from specdiff_jax.model import KVCache, empty_cache
from specdiff_jax.model.drafter import DraftOutput

FULL = DraftAttention()


def small_drafter_config(
    attentions: Sequence[DraftAttention] = (FULL, FULL), backbone: dict[str, Any] | None = None, **changes: Any
) -> DrafterConfig:
    """A drafter with as many layers as `attentions`, which reads three layers of a target, and changes to that."""
    backbone = {"qk_norm": True, "num_layers": len(attentions), **(backbone or {})}
    settings: dict[str, Any] = {
        "backbone": small_config(**backbone),
        "block_size": 5,
        "mask_token_id": 39,
        "target_layer_ids": (0, 2, 1),
        "attentions": tuple(attentions),
    }
    return DrafterConfig(**(settings | changes))


CONFIGS = {
    "as published": small_drafter_config(),
    "group of 1": small_drafter_config(backbone={"num_heads": 2}),
    "group of 3": small_drafter_config(backbone={"num_heads": 6}),
    "no head norms": small_drafter_config(backbone={"qk_norm": False}),
    "biases": small_drafter_config(backbone={"qkv_bias": True, "output_bias": True}),
    "part of the head rotated": small_drafter_config(
        backbone={"rotary": replace(ROTARY, inverse_frequencies=ROTARY.inverse_frequencies[:2])}
    ),
    "three layers, one feature": small_drafter_config((FULL,) * 3, target_layer_ids=(1,)),
    "window": small_drafter_config((DraftAttention(window=4), FULL)),
    "window, causal": small_drafter_config((DraftAttention(window=4, causal=True), FULL)),
    "causal": small_drafter_config((DraftAttention(causal=True),) * 2),
    "window of the block": small_drafter_config((DraftAttention(window=2),) * 2),
    "sinks": small_drafter_config(attention_sinks=True),
    "sinks in a window": small_drafter_config((DraftAttention(window=3),) * 2, attention_sinks=True),
    "value scale": small_drafter_config(attention_value_scale=0.6),
    "input": small_drafter_config(conditioning="input"),
    "input, windows": small_drafter_config((DraftAttention(4, causal=True), DraftAttention(3)), conditioning="input"),
    "none": small_drafter_config(conditioning="none"),
    "none, sinks and value scale": small_drafter_config(
        conditioning="none", attention_sinks=True, attention_value_scale=0.6
    ),
}


@dataclass(frozen=True)
class Text:
    """What a drafter reads of one text: features and embeddings of its tokens, embeddings of the block behind them."""

    features: tuple[np.ndarray, ...]
    context: np.ndarray
    block: np.ndarray

    def until(self, tokens: int) -> Text:
        """A shorter text with the same block."""
        return Text(tuple(feature[:tokens] for feature in self.features), self.context[:tokens], self.block)


@dataclass(frozen=True)
class PublishedDrafter:
    """A float32 drafter and its oracle."""

    config: DrafterConfig
    graphdef: nnx.GraphDef
    params: nnx.State
    tensors: dict[str, np.ndarray]
    settings: dict[str, Any]

    def texts(self, lengths: Sequence[int]) -> list[Text]:
        """Random texts of so many tokens."""
        generator = np.random.default_rng(3)

        def rows(count: int) -> np.ndarray:
            return generator.standard_normal((count, self.config.backbone.hidden_size), np.float32)

        features = len(self.config.target_layer_ids)
        return [
            Text(tuple(rows(length) for _ in range(features)), rows(length), rows(self.config.block_size))
            for length in lengths
        ]

    def empty(self, batch: int, capacity: int, fill: float = 0.0) -> KVCache:
        """A cache without tokens, whose unused entries hold `fill`."""
        empty = empty_cache(self.config.backbone, batch, capacity, jnp.float32)
        return jax.tree.map(lambda array: jnp.full_like(array, fill) if array.ndim > 1 else array, empty)

    def run(
        self,
        features: tuple[np.ndarray, ...],
        context: np.ndarray,
        block: np.ndarray,
        fresh: Sequence[int],
        cache: KVCache,
    ) -> DraftOutput:
        """A compiled draft: features and embeddings of the context's rows, embeddings of the block, batched."""
        return _run(self.graphdef, self.params, features, context, block, jnp.asarray(fresh, jnp.int32), cache)

    def remember(self, features: tuple[np.ndarray, ...], context: np.ndarray, cache: KVCache) -> KVCache:
        """Context rows written, without a draft."""
        return _remember(self.graphdef, self.params, features, context, cache)

    def truth(self, text: Text) -> np.ndarray:
        """The oracle's rows of the block behind a text."""
        return drafter_oracle.hidden(self.tensors, self.settings, text.features, text.context, text.block)


@partial(jax.jit, static_argnums=0)
def _run(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    features: tuple[jax.Array, ...],
    context: jax.Array,
    block: jax.Array,
    fresh: jax.Array,
    cache: KVCache,
) -> DraftOutput:
    drafter = nnx.merge(graphdef, params)
    return drafter(block, drafter.context(features, context), fresh, cache)


@partial(jax.jit, static_argnums=0)
def _remember(
    graphdef: nnx.GraphDef, params: nnx.State, features: tuple[jax.Array, ...], context: jax.Array, cache: KVCache
) -> KVCache:
    drafter = nnx.merge(graphdef, params)
    return drafter.remember(drafter.context(features, context), cache)


@dataclass(frozen=True)
class _InMemory:
    """Tensors that stand in no file."""

    values: dict[str, np.ndarray]
    location: str = "random drafter"

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {name: TensorInfo(value.shape, "F32") for name, value in self.values.items()}

    def read(self, name: str) -> np.ndarray:
        return self.values[name]


@cache
def published_drafter(config: DrafterConfig) -> PublishedDrafter:
    """A drafter in which every weight is random, also norms and sinks, at a scale that makes every part matter."""
    generator = np.random.default_rng(0)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        values = generator.standard_normal(shape, np.float32)
        return 1 + 0.3 * values if len(shape) == 1 else values * config.backbone.hidden_size**-0.5

    tensors = {name: draw(shape) for name, shape in _shapes(config)}
    graphdef, abstract = abstract_drafter(config, "float32")
    params = load_drafter_parameters(_InMemory(tensors), config, abstract)
    return PublishedDrafter(config, graphdef, params, tensors, _settings(config))


def _settings(config: DrafterConfig) -> dict[str, Any]:
    return {
        "layers": config.backbone.num_layers,
        "heads": config.backbone.num_heads,
        "kv_heads": config.backbone.num_kv_heads,
        "eps": config.backbone.rms_norm_eps,
        "inverse_frequencies": config.backbone.rotary.inverse_frequencies,
        "attention_factor": config.backbone.rotary.attention_factor,
        "sees": [(sees.window, sees.causal) for sees in config.attentions],
        "value_scale": config.attention_value_scale,
        "conditioning": config.conditioning,
    }


def _shapes(config: DrafterConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Published names and shapes."""
    backbone = config.backbone
    hidden, inner, size = backbone.hidden_size, backbone.intermediate_size, backbone.head_dim
    rows = {"q": backbone.num_heads * size, "k": backbone.num_kv_heads * size, "v": backbone.num_kv_heads * size}
    if config.conditioning != "none":
        yield "fc.weight", (hidden, hidden * len(config.target_layer_ids))
        yield "hidden_norm.weight", (hidden,)
    yield "norm.weight", (hidden,)
    for layer in range(backbone.num_layers):
        prefix = f"layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        for name, count in rows.items():
            yield f"{prefix}.self_attn.{name}_proj.weight", (count, hidden)
            if backbone.qkv_bias:
                yield f"{prefix}.self_attn.{name}_proj.bias", (count,)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, rows["q"])
        if backbone.output_bias:
            yield f"{prefix}.self_attn.o_proj.bias", (hidden,)
        if backbone.qk_norm:
            yield f"{prefix}.self_attn.q_norm.weight", (size,)
            yield f"{prefix}.self_attn.k_norm.weight", (size,)
        if config.attention_sinks:
            yield f"{prefix}.self_attn.attention_sink_bias", (backbone.num_heads,)
        yield f"{prefix}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.up_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.down_proj.weight", (hidden, inner)
