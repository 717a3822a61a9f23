"""Block diffusion in plain numpy float32: the truth for tests of the decoding loops.

Nothing here comes from the product. One text at a time, greedy and without a cache: every forward runs the whole text,
and a matrix of booleans says what a row sees. That equals decoding with a cache, because a committed row sees nothing
that comes after it is committed, so its keys and values stay as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

Tensors = Mapping[str, np.ndarray]
Settings = Mapping[str, Any]
KeysValues = tuple[np.ndarray, np.ndarray]
Rotation = tuple[np.ndarray, np.ndarray]
Forward = Callable[[Tensors, Settings, Sequence[int], np.ndarray], tuple[np.ndarray, list[KeysValues]]]


# What a row sees.


def causal(rows: int) -> np.ndarray:
    """Every row sees itself and what stands before it."""
    return np.tri(rows, dtype=bool)


def block_causal(rows: int, block: int) -> np.ndarray:
    """Every row sees its own block and the blocks before it; blocks start at multiples of their size."""
    index = np.arange(rows) // block
    return index[:, None] >= index[None, :]


def block_after_prefix(prefix: int, block: int) -> np.ndarray:
    """A causal prefix, then a block whose rows see the prefix and the whole block."""
    seen = causal(prefix + block)
    seen[prefix:] = True
    return seen


# The model.


def forward(
    tensors: Tensors, settings: Settings, tokens: Sequence[int], seen: np.ndarray
) -> tuple[np.ndarray, list[KeysValues]]:
    """Run a text through a decoder without experts.

    Args:
        tensors: weights by their Hugging Face names ("model.layers.0.self_attn.q_proj.weight", ...); biases, head norms
            and the head are used where they are present.
        settings: layers, heads, kv_heads, eps, inverse_frequencies; where the model has them attention_factor,
            query_scale_beta with original_max_position.
        tokens: ids of the text.
        seen: (rows, rows), whether a row sees a key.

    Returns:
        logits (rows, vocab), and for each layer its rotated keys and its values, each (rows, kv_heads, head_dim).
    """
    eps = settings["eps"]
    embedding = tensors["model.embed_tokens.weight"]
    x = embedding[np.asarray(tokens)].astype(np.float32)
    rotation = _rotation(len(tokens), settings)
    cache = []
    for layer in range(settings["layers"]):
        name = f"model.layers.{layer}"
        normed = _rms_norm(x, tensors[f"{name}.input_layernorm.weight"], eps)
        mixed, keys_values = _attention(tensors, f"{name}.self_attn", settings, normed, rotation, seen)
        x = x + mixed
        normed = _rms_norm(x, tensors[f"{name}.post_attention_layernorm.weight"], eps)
        x = x + _feed_forward(tensors, f"{name}.mlp", normed)
        cache.append(keys_values)
    x = _rms_norm(x, tensors["model.norm.weight"], eps)
    return x @ _float32(tensors.get("lm_head.weight", embedding)).T, cache


def _float32(array: Any) -> np.ndarray:
    return np.asarray(array, np.float32)


def _linear(tensors: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    return x @ _float32(tensors[f"{name}.weight"]).T + _float32(tensors.get(f"{name}.bias", 0))


def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + _float32(eps)) * _float32(weight)


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _attention(
    tensors: Tensors, name: str, settings: Settings, x: np.ndarray, rotation: Rotation, seen: np.ndarray
) -> tuple[np.ndarray, KeysValues]:
    rows, heads, kv_heads = len(x), settings["heads"], settings["kv_heads"]
    queries = _linear(tensors, f"{name}.q_proj", x).reshape(rows, heads, -1)
    keys = _linear(tensors, f"{name}.k_proj", x).reshape(rows, kv_heads, -1)
    values = _linear(tensors, f"{name}.v_proj", x).reshape(rows, kv_heads, -1)
    if f"{name}.q_norm.weight" in tensors:
        queries = _rms_norm(queries, tensors[f"{name}.q_norm.weight"], settings["eps"])
        keys = _rms_norm(keys, tensors[f"{name}.k_norm.weight"], settings["eps"])
    queries = _rotate(queries, rotation) * _query_scale(rows, settings)
    keys = _rotate(keys, rotation)

    # Heads first. Neighbouring query heads share a key/value head.
    q = queries.transpose(1, 0, 2) / _float32(np.sqrt(queries.shape[-1]))
    k, v = (np.repeat(part.transpose(1, 0, 2), heads // kv_heads, axis=0) for part in (keys, values))
    bias = np.where(seen, _float32(0), _float32(-np.inf))
    mixed = _softmax(q @ k.transpose(0, 2, 1) + bias) @ v
    return _linear(tensors, f"{name}.o_proj", mixed.transpose(1, 0, 2).reshape(rows, -1)), (keys, values)


def _rotation(rows: int, settings: Settings) -> Rotation:
    """Cosine and sine of every row's angles, each (rows, 1, head_dim / 2)."""
    angles = np.outer(np.arange(rows), settings["inverse_frequencies"])[:, None, :]
    factor = settings.get("attention_factor", 1.0)
    return _float32(factor * np.cos(angles)), _float32(factor * np.sin(angles))


def _rotate(x: np.ndarray, rotation: Rotation) -> np.ndarray:
    """Turn (rows, heads, head_dim); the first half of a head pairs with its second half."""
    cos, sin = rotation
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _query_scale(rows: int, settings: Settings) -> np.ndarray:
    """(rows, 1, 1): 1 + beta ln(1 + floor(position / original_max_position))."""
    if "query_scale_beta" not in settings:
        return np.ones((rows, 1, 1), np.float32)
    periods = np.arange(rows) // settings["original_max_position"]
    return _float32(1 + settings["query_scale_beta"] * np.log(1 + periods))[:, None, None]


def _feed_forward(tensors: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    gate = _linear(tensors, f"{name}.gate_proj", x)
    return _linear(tensors, f"{name}.down_proj", gate / (1 + np.exp(-gate)) * _linear(tensors, f"{name}.up_proj", x))


# Decoding.


@dataclass(frozen=True)
class Rules:
    """How to decode.

    Attributes:
        block: slots of a block.
        mask_id: the id of a slot that is not yet fixed; never proposed.
        stop_ids: ids that end the text.
        threshold: confidence from which (Nemotron-Labs-Diffusion) or above which (Fast-dLLM v2) a slot is fixed.
        limit: most new tokens.
        sub_block: slots of a sub-block, in Fast-dLLM v2 alone.
    """

    block: int
    mask_id: int
    stop_ids: tuple[int, ...]
    threshold: float
    limit: int
    sub_block: int = 8


@dataclass(frozen=True)
class Trace:
    """What decoding gave.

    Attributes:
        tokens: the new ids, up to and with the first stop id, or the limit's number of them.
        steps: for each new token the number of forwards made after the prefill when it became fixed.
        forwards: all forwards made after the prefill.
    """

    tokens: tuple[int, ...]
    steps: tuple[int, ...]
    forwards: int


class Family(ABC):
    """Decoding block by block with one model: what the families share."""

    def __init__(self, tensors: Tensors, settings: Settings, rules: Rules, forward: Forward = forward) -> None:
        self.rules = rules
        self.model = partial(_logits, forward, tensors, settings, rules)

    @abstractmethod
    def begin(self, prompt: Sequence[int]) -> _Text:
        """The prompt and the canvas of the first block."""

    @abstractmethod
    def seen(self, text: _Text) -> np.ndarray:
        """The pattern of the next forward."""

    @abstractmethod
    def speakers(self, slots: np.ndarray) -> np.ndarray:
        """The rows whose logits tell of masked slots."""

    @abstractmethod
    def sub_blocks(self, slots: np.ndarray) -> np.ndarray:
        """Numbers of the slots' sub-blocks within their block."""

    @abstractmethod
    def sure(self, confidence: np.ndarray) -> np.ndarray:
        """Which slots are past the threshold."""

    def logits(self, text: _Text) -> np.ndarray:
        return self.model(text.tokens, self.seen(text))

    def advance(self, text: _Text, logits: np.ndarray) -> None:
        """One step: release slots of the first sub-block that has masks; where none has, begin the next block."""
        masked = text.masked()
        if len(masked) > 0:
            sub_blocks = self.sub_blocks(masked)
            slots = masked[sub_blocks == sub_blocks[0]]
            tokens, confidence = _propose(logits[self.speakers(slots)])
            text.release(slots, tokens, confidence, self.sure(confidence))
        else:
            text.append(logits[-1].argmax())
            text.append_masks(self.rules.block - 1)

    def decode(self, prompt: Sequence[int]) -> Trace:
        text = self.begin(prompt)
        while not text.finished():
            logits = self.logits(text)
            text.forwards += 1
            self.advance(text, logits)
        return text.trace()


class FastDLLMv2(Family):
    """Fast-dLLM v2: block-causal attention, token shift, sub-blocks, confidence > threshold.

    Blocks start at multiples of their size. The whole blocks of the prompt are the prefill; the rest of the prompt, or
    else the choice of the prefill's last row, starts the first block. (The published code loses a prompt of exactly one
    block; this does not.)
    """

    def begin(self, prompt: Sequence[int]) -> _Text:
        text = _Text(prompt, self.rules)
        if len(prompt) % self.rules.block == 0:
            text.append(self.logits(text)[-1].argmax())
        text.append_masks(-len(text.tokens) % self.rules.block)
        return text

    def seen(self, text: _Text) -> np.ndarray:
        return block_causal(len(text.tokens), self.rules.block)

    def speakers(self, slots: np.ndarray) -> np.ndarray:
        assert (slots % self.rules.block != 0).all(), "slot 0 has no row before it in its block"
        return slots - 1

    def sub_blocks(self, slots: np.ndarray) -> np.ndarray:
        return slots % self.rules.block // self.rules.sub_block

    def sure(self, confidence: np.ndarray) -> np.ndarray:
        return confidence > self.rules.threshold


class Nemotron(Family):
    """Nemotron-Labs-Diffusion: bidirectional denoising, causal commit, no token shift, confidence >= threshold.

    The prompt is prefilled causally, and the first block follows it wherever it ends.
    """

    def begin(self, prompt: Sequence[int]) -> _Text:
        text = _Text(prompt, self.rules)
        text.append(self.logits(text)[-1].argmax())
        text.append_masks(self.rules.block - 1)
        return text

    def seen(self, text: _Text) -> np.ndarray:
        rows = len(text.tokens)
        denoising = len(text.masked()) > 0
        return block_after_prefix(rows - self.rules.block, self.rules.block) if denoising else causal(rows)

    def speakers(self, slots: np.ndarray) -> np.ndarray:
        return slots

    def sub_blocks(self, slots: np.ndarray) -> np.ndarray:
        return np.zeros_like(slots)

    def sure(self, confidence: np.ndarray) -> np.ndarray:
        return confidence >= self.rules.threshold


def fast_dllm_v2(
    tensors: Tensors, settings: Settings, prompt: Sequence[int], rules: Rules, forward: Forward = forward
) -> Trace:
    return FastDLLMv2(tensors, settings, rules, forward).decode(prompt)


def nemotron(
    tensors: Tensors, settings: Settings, prompt: Sequence[int], rules: Rules, forward: Forward = forward
) -> Trace:
    return Nemotron(tensors, settings, rules, forward).decode(prompt)


def autoregressive(
    tensors: Tensors, settings: Settings, prompt: Sequence[int], rules: Rules, forward: Forward = forward
) -> Trace:
    """One token a causal forward."""
    model = partial(_logits, forward, tensors, settings, rules)
    text = _Text(prompt, rules)
    text.append(model(text.tokens, causal(len(prompt)))[-1].argmax())
    while not text.finished():
        logits = model(text.tokens, causal(len(text.tokens)))
        text.forwards += 1
        text.append(logits[-1].argmax())
    return text.trace()


def linear_speculation(
    tensors: Tensors, settings: Settings, prompt: Sequence[int], rules: Rules, forward: Forward = forward
) -> Trace:
    """Nemotron-Labs-Diffusion's self-speculation: a block is drafted bidirectionally and verified causally."""
    model = partial(_logits, forward, tensors, settings, rules)
    text = _Text(prompt, rules)
    text.append(model(text.tokens, causal(len(prompt)))[-1].argmax())
    while not text.finished():
        seed = len(text.tokens) - 1
        canvas = text.tokens + [rules.mask_id] * (rules.block - 1)
        drafts = model(canvas, block_after_prefix(seed, rules.block)).argmax(axis=-1)[seed + 1 :]
        canvas = text.tokens + drafts.tolist()
        choices = model(canvas, causal(len(canvas))).argmax(axis=-1)[seed:]
        text.forwards += 2

        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == choices[accepted]:
            accepted += 1
        bonus = choices[accepted]
        for token in [*drafts[:accepted], bonus]:
            text.append(token)
    return text.trace()


def _logits(
    forward: Forward,
    tensors: Tensors,
    settings: Settings,
    rules: Rules,
    tokens: Sequence[int],
    seen: np.ndarray,
) -> np.ndarray:
    """(rows, vocab), with the mask ruled out: a slot that is given the mask would be given nothing."""
    logits = forward(tensors, settings, tokens, seen)[0].copy()
    logits[:, rules.mask_id] = -np.inf
    return logits


def _propose(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every row's most likely token, and the probability of it."""
    return logits.argmax(axis=-1), _softmax(logits).max(axis=-1)


class _Text:
    """A prompt and the canvas after it; for every id how many forwards had been made when it became fixed."""

    def __init__(self, prompt: Sequence[int], rules: Rules) -> None:
        assert len(prompt) > 0, "an empty prompt"
        assert rules.mask_id not in prompt, "the mask in the prompt"
        self.tokens = list(prompt)
        self.forwards = 0
        self._prompt = len(prompt)
        self._rules = rules
        self._steps = [0] * len(prompt)

    def append(self, token: int | np.integer) -> None:
        self.tokens.append(int(token))
        self._steps.append(self.forwards)

    def append_masks(self, count: int) -> None:
        for _ in range(count):
            self.append(self._rules.mask_id)

    def masked(self) -> np.ndarray:
        """Where the masks stand."""
        return np.flatnonzero(np.equal(self.tokens, self._rules.mask_id))

    def release(self, slots: np.ndarray, tokens: np.ndarray, confidence: np.ndarray, sure: np.ndarray) -> None:
        """Fix the slots that are sure, and in any case the most confident one (of equal ones the first)."""
        best = confidence.argmax()
        for index, slot in enumerate(slots):
            if sure[index] or index == best:
                self.tokens[slot] = int(tokens[index])
                self._steps[slot] = self.forwards

    def finished(self) -> bool:
        fixed = self._fixed()
        return len(fixed) >= self._rules.limit or any(token in self._rules.stop_ids for token in fixed)

    def trace(self) -> Trace:
        tokens = self._fixed()[: self._rules.limit]
        for index, token in enumerate(tokens):
            if token in self._rules.stop_ids:
                tokens = tokens[: index + 1]
                break
        steps = self._steps[self._prompt :][: len(tokens)]
        return Trace(tuple(tokens), tuple(steps), self.forwards)

    def _fixed(self) -> list[int]:
        """The new tokens that have no mask before them."""
        new = self.tokens[self._prompt :]
        return new[: new.index(self._rules.mask_id)] if self._rules.mask_id in new else new
