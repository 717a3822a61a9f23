"""Small checkpoints of every family with random weights, each beside the Transformers model that it was saved from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
QUERY_SCALE = {"llama_4_scaling_beta": 0.1}
EXPERTS: dict[str, Any] = {
    "num_hidden_layers": 3,
    "mlp_only_layers": [1],
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}
# Name -> (class in Transformers, settings).
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama, tied": (
        "Llama",
        {
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        },
    ),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3_moe, plain weights": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": False}),
    "fast_dllm_v2": ("Qwen2", {"tie_word_embeddings": True}),
    "nemotron_labs_diffusion": ("Ministral3", {"head_dim": 16, "rope_parameters": YARN_ROPE | QUERY_SCALE}),
    "nemotron_labs_diffusion, no query scale": ("Llama", {"head_dim": 16, "rope_parameters": YARN_ROPE}),
}
# What a diffusion family's config.json has in place of the plain family's.
DIFFUSION: dict[str, dict[str, Any]] = {
    "fast_dllm_v2": {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "model_type": "Fast_dLLM_Qwen",
        "bd_size": 4,
        "mask_token_id": 63,
    },
    "nemotron_labs_diffusion": {
        "architectures": ["NemotronLabsDiffusionModel"],
        "model_type": "nemotron_labs_diffusion",
        "block_size": 4,
        "mask_token_id": 63,
        "dlm_paradigm": "bidirectional",
    },
}


@dataclass(frozen=True, eq=False)
class Saved:
    """A checkpoint's folder and the same model in Transformers, in float32."""

    folder: Path
    reference: transformers.PreTrainedModel

    def logits(self, tokens: np.ndarray, **options: Any) -> np.ndarray:
        """Logits (batch, rows, vocab) of one forward over (batch, rows) ids."""
        with torch.inference_mode():
            return self.reference(torch.from_numpy(tokens).long(), **options).logits.numpy()


def save(family: str, folder: Path, changes: Mapping[str, Any] | None = None) -> Saved:
    """Make a model and save it as its family's checkpoints are."""
    name, settings = FAMILIES[family]
    settings = {**SIZES, **settings, **(changes or {})}
    reference = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**settings)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter_name, parameter in reference.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            offset = 1.0 if "norm" in parameter_name else 0.0
            parameter.copy_(offset + (0.3 if parameter.ndim == 1 else SIZES["hidden_size"] ** -0.5) * values)
    reference.save_pretrained(folder)
    published = family.partition(",")[0]
    if published in DIFFUSION:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | DIFFUSION[published]))
    if published == "nemotron_labs_diffusion":
        tensors = {
            tensor_name.replace("model.", "encoder.", 1).replace("lm_head", "diffusion_head"): tensor
            for tensor_name, tensor in reference.state_dict().items()
        }
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return Saved(folder, reference)
