"""Settings of a target model, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["llama", "qwen2", "qwen3", "qwen3_moe", "fast_dllm_v2", "nemotron_labs_diffusion"]


@dataclass(frozen=True)
class RotaryConfig:
    """Rotary position embedding, already resolved: nothing is left to derive from other keys.

    Attributes:
        kind: the rule that the frequencies come from.
        theta: base of the frequencies.
        inverse_frequencies: head_dim / 2 angles per position, in radians, as float64 rounded once to float32 where used.
        attention_factor: multiplier of cos and sin (YaRN's mscale rule; 1.0 for the other kinds).
        query_scale_beta: None, or beta of the Llama-4 rule: rotated queries are multiplied by
            1 + beta * ln(1 + floor(position / original_max_position)).
        original_max_position: positions of the pre-training, for the query scale; None where there is none.
    """

    kind: Literal["default", "linear", "llama3", "yarn"]
    theta: float
    inverse_frequencies: tuple[float, ...]
    attention_factor: float = 1.0
    query_scale_beta: float | None = None
    original_max_position: int | None = None


@dataclass(frozen=True)
class MoEConfig:
    """Sparse feed-forward with softmax top-k routing (Qwen3-MoE).

    Attributes:
        num_experts: experts a sparse layer.
        experts_per_token: experts that each token is sent to.
        intermediate_size: width of one expert.
        normalize_weights: whether the chosen experts' probabilities are rescaled to sum to 1 (HF `norm_topk_prob`).
        sparse_layers: indices of the layers that are sparse; the others are dense.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    normalize_weights: bool
    sparse_layers: tuple[int, ...]


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer of any supported family.

    Sizes are counts of elements. `eos_token_ids` holds every stop id of config.json; generation_config.json may add more.
    `block_size` and `mask_token_id` are None for autoregressive families.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rotary: RotaryConfig
    max_position_embeddings: int
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    moe: MoEConfig | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    block_size: int | None = None
    mask_token_id: int | None = None

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads
