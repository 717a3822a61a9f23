"""Which checkpoint tensors a parameter of the decoder is made of, and how they are packed.

The decoder joins what is read together: queries, keys and values by key/value head; gate and up row by row.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from specdiff_jax.config import Family, ModelConfig

EVERY = slice(None)


@dataclass(frozen=True)
class Part:
    """One checkpoint tensor and its place in a parameter.

    The parameter, seen in the shape `view` with its axes in the order `axes`, holds the tensor at `index`.

    Attributes:
        name: the tensor's name.
        shape: its shape in the checkpoint.
        view: the parameter's shape with heads, experts or the like as axes of their own.
        index: the tensor's place; () is everywhere.
        axes: order in which the axes of the view are taken; () leaves them as they are.
    """

    name: str
    shape: tuple[int, ...]
    view: tuple[int, ...]
    index: tuple[int | slice, ...] = ()
    axes: tuple[int, ...] = ()

    def pack(self, tensor: np.ndarray, parameter: np.ndarray) -> None:
        """Write the tensor into its place, cast to the parameter's dtype."""
        place = self._place(parameter)
        place[...] = tensor.reshape(place.shape)

    def unpack(self, parameter: np.ndarray) -> np.ndarray:
        """The tensor, from its place in the parameter: the inverse of `pack`."""
        return self._place(parameter).reshape(self.shape)

    def _place(self, parameter: np.ndarray) -> np.ndarray:
        seen = parameter.reshape(self.view)
        return (seen.transpose(self.axes) if self.axes else seen)[self.index]


@dataclass(frozen=True)
class FamilyNames:
    """Where a family keeps its transformer and its head."""

    body: str
    head: str


COMMON_NAMES = FamilyNames("model", "lm_head.weight")
FAMILY_NAMES: dict[Family, FamilyNames] = {
    "llama": COMMON_NAMES,
    "qwen2": COMMON_NAMES,
    "qwen3": COMMON_NAMES,
    "qwen3_moe": COMMON_NAMES,
    "fast_dllm_v2": COMMON_NAMES,
    "nemotron_labs_diffusion": FamilyNames("encoder", "diffusion_head.weight"),
}

# Rotary buffers repeat the config; base_model.* is a PEFT adapter stored beside the model.
IGNORED = re.compile(r"base_model\..*|(.*\.)?rotary_emb\.inv_freq")


def spare_names(config: ModelConfig) -> tuple[str, ...]:
    """Tensors that a checkpoint may hold and that are left out on purpose.

    The head of a tied checkpoint is: some files carry it, but its config says that the embedding is the head.
    """
    return (FAMILY_NAMES[config.family].head,) if config.tie_embeddings else ()


def parameter_parts(config: ModelConfig, present: Container[str]) -> dict[str, tuple[Part, ...]]:
    """The parts of every parameter, by its path in the decoder ("layers.0.attention.qkv").

    Args:
        config: settings of the model.
        present: the checkpoint's tensor names; they tell which of two layouts its experts have.
    """
    names = FAMILY_NAMES[config.family]
    table = {
        "embedding": whole(f"{names.body}.embed_tokens.weight", config.vocab_size, config.hidden_size),
        "norm.weight": whole(f"{names.body}.norm.weight", config.hidden_size),
    }
    if not config.tie_embeddings:
        table["head"] = whole(names.head, config.vocab_size, config.hidden_size)
    return table | layer_parts(config, f"{names.body}.layers", present)


def layer_parts(config: ModelConfig, prefix: str, present: Container[str]) -> dict[str, tuple[Part, ...]]:
    """The parts of every layer's parameters, where the checkpoint's layers are named `prefix`.0, `prefix`.1, ..."""
    return {
        f"layers.{index}.{path}": parts
        for index in range(config.num_layers)
        for path, parts in _layer(config, index, f"{prefix}.{index}", present).items()
    }


def _layer(config: ModelConfig, index: int, prefix: str, present: Container[str]) -> dict[str, tuple[Part, ...]]:
    sparse = config.moe is not None and index in config.moe.sparse_layers
    feed_forward = _experts(config, f"{prefix}.mlp", present) if sparse else _feed_forward(config, f"{prefix}.mlp")
    return {
        "attention_norm.weight": whole(f"{prefix}.input_layernorm.weight", config.hidden_size),
        "feed_forward_norm.weight": whole(f"{prefix}.post_attention_layernorm.weight", config.hidden_size),
        **{f"attention.{path}": parts for path, parts in _attention(config, f"{prefix}.self_attn").items()},
        **{f"feed_forward.{path}": parts for path, parts in feed_forward.items()},
    }


def _attention(config: ModelConfig, prefix: str) -> dict[str, tuple[Part, ...]]:
    hidden, kv_heads, group, size = config.hidden_size, config.num_kv_heads, config.group_size, config.head_dim
    per_kv_head = (kv_heads, group + 2, size)
    places = {"q": slice(0, group), "k": slice(group, group + 1), "v": slice(group + 1, group + 2)}
    rows = {"q": config.num_heads * size, "k": kv_heads * size, "v": kv_heads * size}
    table = {
        "qkv": tuple(
            Part(f"{prefix}.{name}_proj.weight", (rows[name], hidden), (*per_kv_head, hidden), (EVERY, place))
            for name, place in places.items()
        ),
        "out": whole(f"{prefix}.o_proj.weight", hidden, config.num_heads * size),
    }
    if config.qkv_bias:
        table["qkv_bias"] = tuple(
            Part(f"{prefix}.{name}_proj.bias", (rows[name],), per_kv_head, (EVERY, place))
            for name, place in places.items()
        )
    if config.output_bias:
        table["out_bias"] = whole(f"{prefix}.o_proj.bias", hidden)
    if config.qk_norm:
        table["qk_norm.query"] = whole(f"{prefix}.q_norm.weight", size)
        table["qk_norm.key"] = whole(f"{prefix}.k_norm.weight", size)
    return table


def _feed_forward(config: ModelConfig, prefix: str) -> dict[str, tuple[Part, ...]]:
    hidden, width = config.hidden_size, config.intermediate_size
    table = {
        "gate_up": tuple(
            Part(f"{prefix}.{name}_proj.weight", (width, hidden), (width, 2, hidden), (EVERY, column))
            for column, name in enumerate(("gate", "up"))
        ),
        "down": whole(f"{prefix}.down_proj.weight", hidden, width),
    }
    if config.mlp_bias:
        table["gate_up_bias"] = tuple(
            Part(f"{prefix}.{name}_proj.bias", (width,), (width, 2), (EVERY, column))
            for column, name in enumerate(("gate", "up"))
        )
        table["down_bias"] = whole(f"{prefix}.down_proj.bias", hidden)
    return table


def _experts(config: ModelConfig, prefix: str, present: Container[str]) -> dict[str, tuple[Part, ...]]:
    """Expert matrices are (expert, in, out) in the decoder and (out, in) in a checkpoint, one by one or fused."""
    assert config.moe is not None
    experts, hidden, width = config.moe.num_experts, config.hidden_size, config.moe.intermediate_size
    gate_up_view, gate_up_axes = (experts, hidden, width, 2), (0, 3, 2, 1)
    down_view, down_axes = (experts, width, hidden), (0, 2, 1)
    router = whole(f"{prefix}.gate.weight", experts, hidden)
    fused = f"{prefix}.experts.gate_up_proj"
    if fused in present:  # Transformers 5 with save_original_format=False
        gate_up = Part(fused, (experts, 2 * width, hidden), gate_up_view, axes=gate_up_axes)
        down = Part(f"{prefix}.experts.down_proj", (experts, hidden, width), down_view, axes=down_axes)
        return {"router": router, "gate_up": (gate_up,), "down": (down,)}
    return {
        "router": router,
        "gate_up": tuple(
            Part(
                f"{prefix}.experts.{expert}.{name}_proj.weight",
                (width, hidden),
                gate_up_view,
                (expert, column),
                gate_up_axes,
            )
            for expert in range(experts)
            for column, name in enumerate(("gate", "up"))
        ),
        "down": tuple(
            Part(f"{prefix}.experts.{expert}.down_proj.weight", (hidden, width), down_view, (expert,), down_axes)
            for expert in range(experts)
        ),
    }


def whole(name: str, *shape: int) -> tuple[Part, ...]:
    """A parameter that is one checkpoint tensor as it stands."""
    return (Part(name, shape, shape),)
