"""Small decoders with random weights, and those weights under Hugging Face's names for the oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from flax import nnx

from specdiff_jax.config import ModelConfig, MoEConfig
from specdiff_jax.model import Decoder, KVCache
from specdiff_jax.rotary_config import RotaryConfig

HEAD_DIM = 8
ROTARY = RotaryConfig("default", 100.0, tuple(100.0 ** -(i / 4) for i in range(HEAD_DIM // 2)))
# A short "pre-training", so that the query scale changes within a short text.
SCALED_ROTARY = RotaryConfig("yarn", 100.0, ROTARY.inverse_frequencies, 1.1, 0.3, 6)
MOE = MoEConfig(num_experts=6, experts_per_token=2, intermediate_size=12, normalize_weights=True, sparse_layers=(1,))


def small_config(**changes: Any) -> ModelConfig:
    """Two layers with two key/value heads, each of two query heads, and changes to that."""
    settings: dict[str, Any] = {
        "family": "llama",
        "vocab_size": 40,
        "hidden_size": 24,
        "intermediate_size": 36,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "rotary": ROTARY,
        "max_position_embeddings": 64,
    }
    return ModelConfig(**(settings | changes))


CONFIGS = {
    "group of 1": small_config(num_heads=2),
    "group of 3": small_config(num_heads=6),
    "group of 4": small_config(num_heads=4, num_kv_heads=1),
    "group of 6": small_config(num_heads=12),
    "group of 7": small_config(num_heads=7, num_kv_heads=1),
    "biases": small_config(qkv_bias=True, output_bias=True, mlp_bias=True),
    "head norms, tied": small_config(qk_norm=True, tie_embeddings=True),
    "query scale": small_config(rotary=SCALED_ROTARY),
    "experts": small_config(moe=MOE),
    "experts, plain weights": small_config(moe=replace(MOE, normalize_weights=False), qk_norm=True),
}


class Output(NamedTuple):
    """Logits of every row, the cache with the rows in it, and the tapped residual streams."""

    logits: jax.Array
    cache: KVCache | None
    features: tuple[jax.Array, ...]


@dataclass(frozen=True)
class RandomDecoder:
    """A float32 decoder and its oracle."""

    config: ModelConfig
    graphdef: nnx.GraphDef
    params: nnx.State
    tensors: dict[str, np.ndarray]
    settings: dict[str, Any]

    def run(
        self,
        tokens: np.ndarray,
        cache: KVCache | None = None,
        *,
        visible: np.ndarray | None = None,
        taps: tuple[int, ...] = (),
    ) -> Output:
        """A compiled forward over (batch, rows) ids."""
        return _run(self.graphdef, taps, self.params, tokens, cache, visible)

    def truth(self, tokens: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """The oracle's logits and residual streams of one text."""
        return oracle.forward(self.tensors, self.settings, tokens.tolist(), seen)


@partial(jax.jit, static_argnums=(0, 1))
def _run(
    graphdef: nnx.GraphDef,
    taps: tuple[int, ...],
    params: nnx.State,
    tokens: jax.Array,
    cache: KVCache | None,
    visible: jax.Array | None,
) -> Output:
    decoder = nnx.merge(graphdef, params)
    output = decoder(tokens, cache, visible=visible, taps=taps)
    return Output(decoder.logits(output.hidden), output.cache, output.features)


@cache
def random_decoder(config: ModelConfig) -> RandomDecoder:
    """A decoder in which every weight is random, also norms and biases, at a scale that makes every part matter."""
    graphdef, shapes = nnx.split(nnx.eval_shape(lambda: Decoder(config, dtype=jnp.float32, rngs=nnx.Rngs(0))))
    state = random_weights(shapes, config.hidden_size)
    tensors = _tensors(config, nnx.to_pure_dict(state))
    return RandomDecoder(config, graphdef, state, tensors, _settings(config))


def random_weights(shapes: nnx.State, hidden_size: int, seed: int = 0) -> nnx.State:
    """Weights at a scale that makes every part matter."""
    generator = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        values = generator.standard_normal(leaf.shape, np.float32)
        return jnp.asarray(1 + 0.3 * values if len(leaf.shape) == 1 else values * hidden_size**-0.5)

    return jax.tree.map(draw, shapes)


def _settings(config: ModelConfig) -> dict[str, Any]:
    rotary = config.rotary
    settings: dict[str, Any] = {
        "layers": config.num_layers,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "eps": config.rms_norm_eps,
        "inverse_frequencies": rotary.inverse_frequencies,
        "attention_factor": rotary.attention_factor,
    }
    if rotary.query_scale_beta is not None:
        settings |= {
            "query_scale_beta": rotary.query_scale_beta,
            "original_max_position": rotary.original_max_position,
        }
    if config.moe is not None:
        settings |= {
            "experts_per_token": config.moe.experts_per_token,
            "normalize_weights": config.moe.normalize_weights,
        }
    return settings


def _tensors(config: ModelConfig, params: dict[str, Any]) -> dict[str, np.ndarray]:
    tensors = {
        "model.embed_tokens.weight": params["embedding"],
        "model.norm.weight": params["norm"]["weight"],
    }
    if not config.tie_embeddings:
        tensors["lm_head.weight"] = params["head"]
    for index, layer in params["layers"].items():
        prefix = f"model.layers.{index}"
        tensors[f"{prefix}.input_layernorm.weight"] = layer["attention_norm"]["weight"]
        tensors[f"{prefix}.post_attention_layernorm.weight"] = layer["feed_forward_norm"]["weight"]
        for name, tensor in _attention(config, layer["attention"]).items():
            tensors[f"{prefix}.self_attn.{name}"] = tensor
        feed_forward = layer["feed_forward"]
        parts = _experts(feed_forward) if "router" in feed_forward else _feed_forward(feed_forward)
        for name, tensor in parts.items():
            tensors[f"{prefix}.mlp.{name}"] = tensor
    return {name: np.asarray(tensor) for name, tensor in tensors.items()}


def _attention(config: ModelConfig, params: dict[str, Any]) -> dict[str, Any]:
    """Queries, keys and values stand side by side, one key/value head after the other."""
    tensors = {"o_proj.weight": params["out"]}
    for kind in ("weight", "bias"):
        packed = params.get("qkv" if kind == "weight" else "qkv_bias")
        if packed is None:
            continue
        rows: dict[str, list[Any]] = {"q": [], "k": [], "v": []}
        for kv_head in np.split(np.asarray(packed), config.num_kv_heads):
            *queries, key, value = np.split(kv_head, config.group_size + 2)
            rows["q"] += queries
            rows["k"].append(key)
            rows["v"].append(value)
        tensors |= {f"{name}_proj.{kind}": np.concatenate(parts) for name, parts in rows.items()}
    if "out_bias" in params:
        tensors["o_proj.bias"] = params["out_bias"]
    if "qk_norm" in params:
        tensors |= {"q_norm.weight": params["qk_norm"]["query"], "k_norm.weight": params["qk_norm"]["key"]}
    return tensors


def _feed_forward(params: dict[str, Any]) -> dict[str, Any]:
    tensors = {
        "gate_proj.weight": params["gate_up"][0::2],
        "up_proj.weight": params["gate_up"][1::2],
        "down_proj.weight": params["down"],
    }
    if "down_bias" in params:
        tensors |= {
            "gate_proj.bias": params["gate_up_bias"][0::2],
            "up_proj.bias": params["gate_up_bias"][1::2],
            "down_proj.bias": params["down_bias"],
        }
    return tensors


def _experts(params: dict[str, Any]) -> dict[str, Any]:
    """Experts are stored (in, out)."""
    tensors = {"gate.weight": params["router"]}
    for expert, (gate_up, down) in enumerate(zip(params["gate_up"], params["down"], strict=True)):
        parts = _feed_forward({"gate_up": gate_up.T, "down": down.T})
        tensors |= {f"experts.{expert}.{name}": tensor for name, tensor in parts.items()}
    return tensors
