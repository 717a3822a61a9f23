"""Metadata of a GGUF file, read with checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convert.listing import listed
from specdiff_jax.errors import InputError

# Architecture in GGUF -> (model_type, architectures[0]) in Hugging Face.
ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
}
ATTENTION_KEYS = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
)
ROPE_KEYS = (
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",  # says how the model came about, changes nothing
)
SIZE_KEYS = ("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size")
EXPERT_KEYS = ("expert_count", "expert_used_count", "expert_feed_forward_length")


class ArchitectureKeys:
    """The metadata keys that start with the architecture's name.

    Attributes:
        architecture: one of `ARCHITECTURES`.
    """

    def __init__(self, metadata: Mapping[str, Any], location: str) -> None:
        """Take a file's metadata.

        Raises:
            InputError: the architecture isn't supported, or has an unknown key, which may change anything.
        """
        architecture = metadata.get("general.architecture")
        if architecture not in ARCHITECTURES:
            raise InputError(f"{location}: architecture {architecture!r} is none of {', '.join(ARCHITECTURES)}")
        prefix = f"{architecture}."
        self.architecture: str = architecture
        self._prefix = f"{location}: {prefix}"
        self._values = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
        known = {*SIZE_KEYS, *ATTENTION_KEYS, *ROPE_KEYS, *(EXPERT_KEYS if architecture == "qwen3moe" else ())}
        unknown = sorted(self._values.keys() - known)
        if unknown:
            raise InputError(f"{self._prefix}* has keys that aren't supported: {listed(unknown)}")

    @property
    def head_dim(self) -> int:
        """Elements of a head: as named, or else hidden size / heads."""
        default = self.whole("embedding_length") // self.whole("attention.head_count")
        head_dim = self.whole("attention.key_length", default)
        for name in ("attention.value_length", "rope.dimension_count"):
            if self.whole(name, head_dim) != head_dim:
                raise InputError(f"{self._prefix}{name} must equal the head size {head_dim}")
        return head_dim

    def whole(self, name: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self._values.get(name, default)
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{self._prefix}{name} must be one positive whole number, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._values.get(name, default)
        if not isinstance(value, int | float) or not value > 0:
            raise InputError(f"{self._prefix}{name} must be a positive number, not {value!r}")
        return float(value)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """One of a few words."""
        value = self._values.get(name, default)
        if value not in choices:
            raise InputError(f"{self._prefix}{name} must be one of {', '.join(choices)}, not {value!r}")
        return value
