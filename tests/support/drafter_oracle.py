"""The drafter again, in plain numpy float64 and loops, from the published tensors: the truth for tests of the module.

The formulas are those of the DFlash paper (arXiv 2602.06036) and of the published checkpoints. Nothing here comes from
the product. One text at a time, no cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from oracle import _feed_forward, _linear, _rms_norm, _rotate, _softmax, _under

Tensors = Mapping[str, np.ndarray]
Settings = Mapping[str, Any]


def hidden(
    tensors: Tensors, settings: Settings, features: Sequence[np.ndarray], context: np.ndarray, block: np.ndarray
) -> np.ndarray:
    """Rows (slots, hidden) of a block behind the drafter's final norm.

    Args:
        tensors: weights by their published names ("layers.0.self_attn.q_proj.weight", ...); biases, head norms and
            sinks are used where they are present.
        settings: layers, heads, kv_heads, eps, inverse_frequencies (of as many dimensions as are rotated), and sees,
            a pair (window or None, causal) for each layer; where it differs from the usual attention_factor,
            value_scale, conditioning.
        features: the target's residual stream (tokens, hidden) behind each of its layers that are read.
        context: embeddings (tokens, hidden) of the text before the block.
        block: embeddings (slots, hidden) of the anchor and of the masks.
    """
    conditioning = settings.get("conditioning", "key_value")
    streams = _read(tensors, settings, features, context, conditioning)
    injected = conditioning == "key_value"
    x = block.astype(np.float64)
    for layer in range(settings["layers"]):
        part = _under(tensors, f"layers.{layer}.")
        # Injected features have a norm of their own and stay the same in all layers; a stream has each layer's norm.
        normed = streams if injected else _enter(part, settings, streams)
        mixed = _attention(part, settings, settings["sees"][layer], normed, _enter(part, settings, x))
        x = _finish(part, settings, x, mixed[len(context) :])
        if not injected:
            streams = _finish(part, settings, streams, mixed[: len(context)])
    return _rms_norm(x, tensors["norm.weight"].astype(np.float64), settings["eps"])


def logits(hidden_rows: np.ndarray, head: np.ndarray, multiplier: float = 1.0, cap: float | None = None) -> np.ndarray:
    """By the target's head (vocab, hidden), without any norm of the target."""
    scores = hidden_rows @ head.astype(np.float64).T * multiplier
    return scores if cap is None else cap * np.tanh(scores / cap)


def yarn(head_dim: int, theta: float, factor: float, original: int) -> tuple[np.ndarray, float]:
    """Frequencies and the multiplier of cos and sin of YaRN (arXiv 2309.00071), with its usual 32 and 1 rotations.

    As in the authors' code, the ramp between what is kept and what is divided runs over the dimensions from the last
    one that turns 32 times within the original positions to the first one that turns once.
    """
    frequencies = np.array([theta ** (-2 * i / head_dim) for i in range(head_dim // 2)])
    first, last = (
        head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (32.0, 1.0)
    )
    low, high = max(math.floor(first), 0), min(math.ceil(last), head_dim - 1)
    divided = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(head_dim // 2)]
    scaled = [f * (1 - share) + f / factor * share for f, share in zip(frequencies, divided, strict=True)]
    return np.array(scaled), 0.1 * math.log(factor) + 1.0


def _read(
    tensors: Tensors, settings: Settings, features: Sequence[np.ndarray], context: np.ndarray, conditioning: str
) -> np.ndarray:
    """What the layers read of the text before the block."""
    if conditioning == "none":
        return context.astype(np.float64)
    joined = np.concatenate([feature.astype(np.float64) for feature in features], axis=-1)
    fused = _rms_norm(_linear(tensors, "fc", joined), tensors["hidden_norm.weight"], settings["eps"])
    return context + fused if conditioning == "input" else fused


def _enter(part: Tensors, settings: Settings, x: np.ndarray) -> np.ndarray:
    return _rms_norm(x, part["input_layernorm.weight"], settings["eps"])


def _finish(part: Tensors, settings: Settings, x: np.ndarray, mixed: np.ndarray) -> np.ndarray:
    x = x + _linear(_under(part, "self_attn."), "o_proj", mixed)
    return x + _feed_forward(
        _under(part, "mlp."), _rms_norm(x, part["post_attention_layernorm.weight"], settings["eps"])
    )


def _attention(
    part: Tensors, settings: Settings, sees: tuple[int | None, bool], context: np.ndarray, block: np.ndarray
) -> np.ndarray:
    """What every row takes from the values: also those of the text, which count only where they have a stream."""
    weights, rows = _under(part, "self_attn."), np.concatenate([context, block])
    heads, kv_heads, start = settings["heads"], settings["kv_heads"], len(context)
    queries, keys = (_heads(weights, settings, rows, name, count) for name, count in (("q", heads), ("k", kv_heads)))
    values = _linear(weights, "v_proj", rows).reshape(len(rows), kv_heads, -1) * settings.get("value_scale", 1.0)
    mixed = np.zeros_like(queries)
    for row in range(len(rows)):
        visible = [key for key in range(len(rows)) if _is_seen(row, key, start, *sees)]
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = keys[visible, kv_head] @ queries[row, head] / np.sqrt(queries.shape[-1])
            if "attention_sink_bias" in weights:
                scores = np.append(scores, weights["attention_sink_bias"][head])
            mixed[row, head] = _softmax(scores)[: len(visible)] @ values[visible, kv_head]
    return mixed.reshape(len(rows), -1)


def _heads(weights: Tensors, settings: Settings, rows: np.ndarray, name: str, count: int) -> np.ndarray:
    """Queries or keys of all rows, normed a head, rotated to their positions."""
    products = _linear(weights, f"{name}_proj", rows).reshape(len(rows), count, -1)
    if f"{name}_norm.weight" in weights:
        products = _rms_norm(products, weights[f"{name}_norm.weight"], settings["eps"])
    turned = 2 * len(settings["inverse_frequencies"])
    for position in range(len(rows)):
        for head in products[position]:
            head[:turned] = _rotate(head[:turned], position, settings)
    return products


def _is_seen(row: int, key: int, start: int, window: int | None, causal: bool) -> bool:
    """Whether a row sees a key, by their positions; the block begins at `start`."""
    if (row < start or causal) and key > row:
        return False
    return window is None or abs(row - key) < window
