"""Fast-dLLM v2 with its sub-block cache (DualCache) in plain numpy: keys and values are kept, and grow stale.

A sub-block's first forward is one of the whole block, and so are those while its first slot is masked; after that only
the sub-block's rows are computed anew, and the block's other rows keep the keys and values of an earlier step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from block_oracle import Rules, Settings, Tensors, Trace, _feed_forward, _float32, _linear, _rms_norm, _softmax


class Decoder:
    """A decoder with its keys and values; what has not been computed is NaN."""

    def __init__(self, tensors: Tensors, settings: Settings, capacity: int) -> None:
        self.tensors, self.settings = tensors, settings
        size = 2 * len(settings["inverse_frequencies"])
        shape = (settings["layers"], capacity, settings["kv_heads"], size)
        self.keys, self.values = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)

    def forward(self, tokens: Sequence[int], start: int, seen: Sequence[int]) -> np.ndarray:
        """Logits of rows from `start` on, of which each sees so many keys from the start of the text."""
        tensors, eps = self.tensors, self.settings["eps"]
        x = _float32(tensors["model.embed_tokens.weight"])[np.asarray(tokens)]
        for layer in range(self.settings["layers"]):
            name = f"model.layers.{layer}"
            normed = _rms_norm(x, tensors[f"{name}.input_layernorm.weight"], eps)
            x = x + self._attention(layer, f"{name}.self_attn", normed, start, seen)
            normed = _rms_norm(x, tensors[f"{name}.post_attention_layernorm.weight"], eps)
            x = x + _feed_forward(tensors, f"{name}.mlp", normed)
        return _rms_norm(x, tensors["model.norm.weight"], eps) @ _float32(tensors["lm_head.weight"]).T

    def _attention(self, layer: int, name: str, x: np.ndarray, start: int, seen: Sequence[int]) -> np.ndarray:
        heads, kv_heads = self.settings["heads"], self.settings["kv_heads"]
        q, k, v = (_linear(self.tensors, f"{name}.{part}_proj", x) for part in "qkv")
        q, k, v = (part.reshape(len(x), count, -1) for part, count in ((q, heads), (k, kv_heads), (v, kv_heads)))
        q, k = self._rotated(q, start), self._rotated(k, start)
        self.keys[layer, start : start + len(x)] = k
        self.values[layer, start : start + len(x)] = v
        mixed = np.zeros_like(q)
        for row, count in enumerate(seen):
            for head in range(heads):
                kv_head = head // (heads // kv_heads)
                scores = self.keys[layer, :count, kv_head] @ q[row, head] / np.sqrt(q.shape[-1])
                mixed[row, head] = _softmax(_float32(scores)) @ self.values[layer, :count, kv_head]
        return _linear(self.tensors, f"{name}.o_proj", mixed.reshape(len(x), -1))

    def _rotated(self, x: np.ndarray, start: int) -> np.ndarray:
        angles = np.outer(start + np.arange(len(x)), self.settings["inverse_frequencies"])[:, None]
        cos, sin = _float32(np.cos(angles)), _float32(np.sin(angles))
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def fast_dllm_v2(tensors: Tensors, settings: Settings, prompt: Sequence[int], rules: Rules) -> tuple[Trace, list[int]]:
    """Decode greedily; beside the trace, the number of rows of every forward after the prefill."""
    block, width, mask = rules.block, rules.sub_block, rules.mask_id
    start = len(prompt) // block * block
    decoder = Decoder(tensors, settings, len(prompt) + rules.limit + 2 * block)
    text, steps, widths = list(prompt), [0] * len(prompt), []

    def fresh(token: int | None) -> None:
        """Fill the canvas up to a whole block; it begins with a token where there is one."""
        text.extend([] if token is None else [token])
        text.extend([mask] * (-len(text) % block))
        steps.extend([len(widths)] * (len(text) - len(steps)))

    seed = None
    if start > 0:
        committed = decoder.forward(prompt[:start], 0, [row // block * block + block for row in range(start)])
        seed = _likeliest(committed[-1], mask)[0] if start == len(prompt) else None
    fresh(seed)
    newest = None  # the sub-block of the last whole forward
    while True:
        new = text[len(prompt) :]
        fixed = new[: new.index(mask)] if mask in new else new
        ends = [place + 1 for place, token in enumerate(fixed) if token in rules.stop_ids][:1]
        if ends or len(fixed) >= rules.limit:
            count = min([*ends, rules.limit])
            return Trace(tuple(fixed[:count]), tuple(steps[len(prompt) :][:count]), len(widths)), widths
        canvas, end = text[start:], start + block
        if mask not in canvas:
            logits = decoder.forward(canvas, start, [end] * block)
            widths.append(block)
            start, newest = end, None
            fresh(_likeliest(logits[-1], mask)[0])
            continue
        first = canvas.index(mask) // width * width
        alone = newest == first and canvas[first] != mask
        low, rows = (first, width) if alone else (0, block)
        logits = decoder.forward(canvas[low : low + rows], start + low, [end] * rows)
        widths.append(rows)
        newest = first
        slots = [slot for slot in range(first, first + width) if canvas[slot] == mask]
        found = [_likeliest(logits[slot - 1 - low], mask) for slot in slots]
        best = int(np.argmax([confidence for _, confidence in found]))
        for index, (slot, (token, confidence)) in enumerate(zip(slots, found, strict=True)):
            if index == best or confidence > rules.threshold:
                text[start + slot], steps[start + slot] = token, len(widths)


def _likeliest(logits: np.ndarray, mask: int) -> tuple[int, np.floating]:
    logits = logits.copy()
    logits[mask] = -np.inf
    return int(logits.argmax()), _softmax(logits).max()
