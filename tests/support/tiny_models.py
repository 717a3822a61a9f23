"""Small checkpoints with random weights, and what the decoder's parameters must be for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from safetensors.numpy import load_file

from convert.assemble import load_parameters
from convert.checkpoint import Checkpoint
from convert.names import Part
from specdiff_jax.config import ModelConfig, parse_config
from specdiff_jax.model import Decoder

SIZES = {
    "vocab_size": 50,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"tie_word_embeddings": True},
    "Llama with biases": {"attention_bias": True, "mlp_bias": True},
    "Qwen2": {},
    "Qwen3": {},
    "Qwen3Moe": {
        "num_hidden_layers": 3,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "mlp_only_layers": [1],
    },
}


def save_family(family: str, folder: Path, **save_options: Any) -> None:
    """Save a small model of random weights, biases and norms with Transformers."""
    import torch
    import transformers

    name = family.split()[0]
    settings = {**SIZES, **FAMILIES[family]}
    if name == "Qwen2":
        del settings["head_dim"]
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    model.to(save_options.pop("dtype", torch.float32)).save_pretrained(folder, **save_options)


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder."""
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def read_settings(folder: Path) -> ModelConfig:
    """The parsed config of a folder."""
    return parse_config(json.loads((folder / "config.json").read_text()), str(folder))


def abstract_state(config: ModelConfig, dtype: str = "float32") -> nnx.State:
    """The decoder's state without weights."""
    return nnx.state(nnx.eval_shape(lambda: Decoder(config, dtype=dtype, rngs=nnx.Rngs(0))))


def load_params(checkpoint: Checkpoint, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Load a checkpoint and give its parameters by path."""
    config = parse_config(checkpoint.config, checkpoint.config_location)
    assert checkpoint.tensors is not None
    return by_path(load_parameters(checkpoint.tensors, config, abstract_state(config, dtype)))


def by_path(params: nnx.State) -> dict[str, np.ndarray]:
    """Parameters as numpy arrays by their dotted path."""
    return {".".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(params)}


def alternate(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Rows gate 0, up 0, gate 1, up 1, ..."""
    return np.array([row for pair in zip(gate, up, strict=True) for row in pair])


def by_kv_head(q: np.ndarray, k: np.ndarray, v: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Rows of each key/value head: its queries, its key, its value."""
    per_group, per_head = config.group_size * config.head_dim, config.head_dim
    rows = []
    for head in range(config.num_kv_heads):
        rows += [q[head * per_group : (head + 1) * per_group]]
        rows += [x[head * per_head : (head + 1) * per_head] for x in (k, v)]
    return np.concatenate(rows)


def expected_params(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, body: str = "model", head: str = "lm_head.weight"
) -> dict[str, np.ndarray]:
    """The decoder's parameters, worked out tensor by tensor."""
    params = {"embedding": tensors[f"{body}.embed_tokens.weight"], "norm.weight": tensors[f"{body}.norm.weight"]}
    if not config.tie_embeddings:
        params["head"] = tensors[head]
    for index in range(config.num_layers):
        source, layer = f"{body}.layers.{index}", f"layers.{index}"
        attention, mlp = f"{source}.self_attn", f"{source}.mlp"
        params[f"{layer}.attention_norm.weight"] = tensors[f"{source}.input_layernorm.weight"]
        params[f"{layer}.feed_forward_norm.weight"] = tensors[f"{source}.post_attention_layernorm.weight"]
        params[f"{layer}.attention.out"] = tensors[f"{attention}.o_proj.weight"]
        q, k, v = (tensors[f"{attention}.{name}_proj.weight"] for name in "qkv")
        params[f"{layer}.attention.qkv"] = by_kv_head(q, k, v, config)
        if config.qkv_bias:
            q, k, v = (tensors[f"{attention}.{name}_proj.bias"] for name in "qkv")
            params[f"{layer}.attention.qkv_bias"] = by_kv_head(q, k, v, config)
        if config.output_bias:
            params[f"{layer}.attention.out_bias"] = tensors[f"{attention}.o_proj.bias"]
        if config.qk_norm:
            params[f"{layer}.attention.qk_norm.query"] = tensors[f"{attention}.q_norm.weight"]
            params[f"{layer}.attention.qk_norm.key"] = tensors[f"{attention}.k_norm.weight"]
        if config.moe is not None and index in config.moe.sparse_layers:
            experts = [f"{mlp}.experts.{expert}" for expert in range(config.moe.num_experts)]
            params[f"{layer}.feed_forward.router"] = tensors[f"{mlp}.gate.weight"]
            params[f"{layer}.feed_forward.gate_up"] = np.array(
                [
                    alternate(tensors[f"{expert}.gate_proj.weight"], tensors[f"{expert}.up_proj.weight"]).T
                    for expert in experts
                ]
            )
            params[f"{layer}.feed_forward.down"] = np.array(
                [tensors[f"{expert}.down_proj.weight"].T for expert in experts]
            )
            continue
        gate, up = (tensors[f"{mlp}.{name}_proj.weight"] for name in ("gate", "up"))
        params[f"{layer}.feed_forward.gate_up"] = alternate(gate, up)
        params[f"{layer}.feed_forward.down"] = tensors[f"{mlp}.down_proj.weight"]
        if config.mlp_bias:
            gate, up = (tensors[f"{mlp}.{name}_proj.bias"] for name in ("gate", "up"))
            params[f"{layer}.feed_forward.gate_up_bias"] = alternate(gate, up)
            params[f"{layer}.feed_forward.down_bias"] = tensors[f"{mlp}.down_proj.bias"]
    return params


def assert_same(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """Same paths, dtypes and bits."""
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        assert found[path].dtype == array.dtype, path
        np.testing.assert_array_equal(found[path], array, err_msg=path)


def assert_filled_once(table: Mapping[str, Sequence[Part]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """The parts of every parameter cover all of it, and nothing twice."""
    for path, parts in table.items():
        assert sum(int(np.prod(part.shape)) for part in parts) == int(np.prod(shapes[path])), path
        parameter = np.full(shapes[path], np.nan)
        for part in parts:
            part.pack(np.zeros(part.shape), parameter)
        assert not np.isnan(parameter).any(), path
