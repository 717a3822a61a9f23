"""The same checkpoint in Transformers, in float32 on the CPU: what `check` compares with.

Only built-in classes are made; no code that comes with a checkpoint is run. They read the settings themselves, and the
float weights of a Hugging Face folder too, so that this side shares no reading with the library. Weights that they
can't read (int8 rows, GGUF) come from the converter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    LlamaForCausalLM,
    Ministral3ForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
)

from convert.checkpoint import Checkpoint
from convert.trace import Trace
from specdiff_jax.config import Family, ModelConfig

CausalLM = LlamaForCausalLM | Ministral3ForCausalLM | Qwen2ForCausalLM | Qwen3ForCausalLM | Qwen3MoeForCausalLM

# The two diffusion families are ordinary transformers once their attention is causal.
_CLASSES: dict[Family, type[CausalLM]] = {
    "llama": LlamaForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
    "qwen3_moe": Qwen3MoeForCausalLM,
    "fast_dllm_v2": Qwen2ForCausalLM,
    "nemotron_labs_diffusion": Ministral3ForCausalLM,
}
_RENAMED = {r"^encoder\.": "model.", r"^diffusion_head\.": "lm_head."}


def load_transformers(checkpoint: Checkpoint, config: ModelConfig) -> CausalLM:
    """The checkpoint as a Transformers model, whose attention is causal whatever the family.

    Args:
        checkpoint: a Hugging Face folder or a GGUF file.
        config: the settings as this library reads them, for nothing but the choice of the class.
    """
    model_class = _CLASSES[config.family]
    if model_class is Ministral3ForCausalLM and config.rotary.query_scale_beta is None:
        model_class = LlamaForCausalLM  # Ministral3 can't do without the query scale, in which alone they differ
    assert model_class.config_class is not None
    given = {key: value for key, value in checkpoint.config.items() if key not in ("architectures", "model_type")}
    settings = model_class.config_class.from_dict(given)
    common: dict[str, Any] = {"config": settings, "dtype": torch.float32, "attn_implementation": "eager"}
    if checkpoint.kind == "safetensors":
        common |= {"pretrained_model_name_or_path": checkpoint.path, "use_safetensors": True}
    else:
        common |= {"pretrained_model_name_or_path": None, "state_dict": _state_dict(checkpoint)}
    model = model_class.from_pretrained(key_mapping=_RENAMED, **common)
    model.generation_config = GenerationConfig()  # the checkpoint's own may sample, or stop early
    return model


def trace_transformers(model: CausalLM, prompt: Sequence[int], new_tokens: int) -> Trace:
    """Continue a prompt greedily by `new_tokens` tokens and record every position that was read."""
    with torch.inference_mode():
        result: Any = model.generate(
            torch.tensor([prompt]),
            do_sample=False,
            max_new_tokens=new_tokens,
            return_dict_in_generate=True,
            output_hidden_states=True,
        )
        # A step has the embedding first; what it has last is after the final norm.
        _, *layers = (torch.cat(steps, dim=1)[0] for steps in zip(*result.hidden_states, strict=True))
        logits = model.get_output_embeddings()(layers[-1])
    hidden = torch.stack(layers)
    return Trace(result.sequences[0].numpy(), len(prompt), logits.numpy(), hidden.numpy())


def _state_dict(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    source = checkpoint.tensors
    assert source is not None
    return {name: torch.from_numpy(source.read(name).astype(np.float32)) for name in source.tensors}
