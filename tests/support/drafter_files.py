"""A small drafter's files with the names that published ones have, and a target that it fits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from specdiff_jax.config import ModelConfig, parse_config

# The layers have the sizes of the target's, but for their number and their width.
_SIZES: dict[str, Any] = {
    "head_dim": 8,
    "hidden_size": 24,
    "max_position_embeddings": 128,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": 50,
}
_TARGET = {"architectures": ["Qwen3ForCausalLM"], "intermediate_size": 32, "num_hidden_layers": 6, **_SIZES}
TARGET: ModelConfig = parse_config(_TARGET, "target")

SETTINGS: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 8,
    "bos_token_id": 1,
    "dflash_config": {"mask_token_id": 49, "target_layer_ids": [0, 2, 5]},
    "dtype": "float32",
    "hidden_act": "silu",
    "intermediate_size": 40,
    "layer_types": ["full_attention"] * 2,
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "num_target_layers": 6,
    "rope_scaling": None,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    **_SIZES,
}

EVERYTHING: dict[str, Any] = {
    **SETTINGS,
    "attention_bias": True,
    "dflash_config": {**SETTINGS["dflash_config"], "attention_sink_bias": True, "attention_value_scale": 0.6},
}
"""The same with all weights that are rare: biases and sinks."""


def published_tensors(settings: Mapping[str, Any] = SETTINGS) -> dict[str, np.ndarray]:
    """Random weights by their published names, with shapes (out, in)."""
    hidden, width, size = settings["hidden_size"], settings["intermediate_size"], settings["head_dim"]
    section = settings["dflash_config"]
    rows = {"q": settings["num_attention_heads"] * size, "k": settings["num_key_value_heads"] * size}
    rows["v"] = rows["k"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(section["target_layer_ids"]) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(settings["num_hidden_layers"]):
        layer, attention, mlp = (f"layers.{index}{part}" for part in ("", ".self_attn", ".mlp"))
        shapes |= {f"{layer}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        shapes |= {f"{attention}.{name}_proj.weight": (count, hidden) for name, count in rows.items()}
        shapes |= {f"{attention}.{name}_norm.weight": (size,) for name in "qk"}
        shapes |= {f"{attention}.o_proj.weight": (hidden, rows["q"])}
        shapes |= {f"{mlp}.{name}_proj.weight": (width, hidden) for name in ("gate", "up")}
        shapes |= {f"{mlp}.down_proj.weight": (hidden, width)}
        if settings["attention_bias"]:
            shapes |= {f"{attention}.{name}_proj.bias": (count,) for name, count in (rows | {"o": hidden}).items()}
        if section.get("attention_sink_bias"):
            shapes |= {f"{attention}.attention_sink_bias": (settings["num_attention_heads"],)}
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def save_published(
    folder: Path, settings: Mapping[str, Any] = SETTINGS, tensors: Mapping[str, np.ndarray] | None = None
) -> Path:
    """Write config.json and weights, by default those of `published_tensors`."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(dict(published_tensors(settings) if tensors is None else tensors), folder / "model.safetensors")
    return folder
