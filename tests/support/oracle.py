"""The decoder again, in plain numpy float64 and loops, from Hugging Face's tensors: the truth for tests of the model.

Nothing here comes from the product. One text at a time, no cache: what a row sees is a matrix of booleans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Tensors = Mapping[str, np.ndarray]
Settings = Mapping[str, Any]


def causal(rows: int) -> np.ndarray:
    """Every row sees itself and what stands before it."""
    return np.array([[key <= row for key in range(rows)] for row in range(rows)])


def block_causal(rows: int, block: int) -> np.ndarray:
    """Every row sees its own block and the blocks before it."""
    return np.array([[key // block <= row // block for key in range(rows)] for row in range(rows)])


def block_after_prefix(prefix: int, block: int) -> np.ndarray:
    """A causal prefix, then a block whose rows see the prefix and the whole block."""
    seen = causal(prefix + block)
    seen[prefix:] = True
    return seen


def forward(
    tensors: Tensors, settings: Settings, tokens: Sequence[int], seen: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Run a text through the whole decoder.

    Args:
        tensors: weights by their Hugging Face names ("model.layers.0.self_attn.q_proj.weight", ...); biases, head norms
            and the head are used where they are present.
        settings: layers, heads, kv_heads, eps, inverse_frequencies; where the model has them attention_factor,
            query_scale_beta with original_max_position, experts_per_token with normalize_weights.
        tokens: ids of the text.
        seen: (rows, rows), whether a row sees a key.

    Returns:
        logits (rows, vocab) and the residual stream (rows, hidden) after each layer.
    """
    x = tensors["model.embed_tokens.weight"].astype(np.float64)[np.asarray(tokens)]
    streams = []
    for layer in range(settings["layers"]):
        part = _under(tensors, f"model.layers.{layer}.")
        normed = _rms_norm(x, part["input_layernorm.weight"], settings["eps"])
        x = x + _attention(_under(part, "self_attn."), settings, normed, seen)
        normed = _rms_norm(x, part["post_attention_layernorm.weight"], settings["eps"])
        mlp = _under(part, "mlp.")
        x = x + (_experts(mlp, settings, normed) if "gate.weight" in mlp else _feed_forward(mlp, normed))
        streams.append(x)
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    return _rms_norm(x, tensors["model.norm.weight"], settings["eps"]) @ head.astype(np.float64).T, streams


def _under(tensors: Tensors, prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): tensor.astype(np.float64)
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _linear(tensors: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    return x @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0.0)


def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def _attention(tensors: Tensors, settings: Settings, x: np.ndarray, seen: np.ndarray) -> np.ndarray:
    rows, heads, kv_heads = len(x), settings["heads"], settings["kv_heads"]
    queries = _linear(tensors, "q_proj", x).reshape(rows, heads, -1)
    keys = _linear(tensors, "k_proj", x).reshape(rows, kv_heads, -1)
    values = _linear(tensors, "v_proj", x).reshape(rows, kv_heads, -1)
    if "q_norm.weight" in tensors:
        queries = _rms_norm(queries, tensors["q_norm.weight"], settings["eps"])
        keys = _rms_norm(keys, tensors["k_norm.weight"], settings["eps"])
    size = queries.shape[-1]
    mixed = np.zeros_like(queries)
    for row in range(rows):
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            query = _rotate(queries[row, head], row, settings) * _query_scale(row, settings)
            visible = [key for key in range(rows) if seen[row, key]]
            scores = [query @ _rotate(keys[key, kv_head], key, settings) / np.sqrt(size) for key in visible]
            mixed[row, head] = _softmax(np.array(scores)) @ values[visible, kv_head]
    return _linear(tensors, "o_proj", mixed.reshape(rows, -1))


def _rotate(x: np.ndarray, position: int, settings: Settings) -> np.ndarray:
    angles = position * np.concatenate([settings["inverse_frequencies"]] * 2)
    half = len(x) // 2
    turned = np.concatenate([-x[half:], x[:half]])
    return (x * np.cos(angles) + turned * np.sin(angles)) * settings.get("attention_factor", 1.0)


def _query_scale(position: int, settings: Settings) -> float:
    if "query_scale_beta" not in settings:
        return 1.0
    return 1.0 + settings["query_scale_beta"] * np.log(1.0 + position // settings["original_max_position"])


def _feed_forward(tensors: Tensors, x: np.ndarray) -> np.ndarray:
    gate = _linear(tensors, "gate_proj", x)
    return _linear(tensors, "down_proj", gate / (1.0 + np.exp(-gate)) * _linear(tensors, "up_proj", x))


def _experts(tensors: Tensors, settings: Settings, x: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)
    for row, token in enumerate(x):
        shares = _softmax(tensors["gate.weight"] @ token)
        chosen = np.argsort(-shares)[: settings["experts_per_token"]]
        total = shares[chosen].sum() if settings["normalize_weights"] else 1.0
        for expert in chosen:
            out[row] += shares[expert] / total * _feed_forward(_under(tensors, f"experts.{expert}."), token)
    return out
