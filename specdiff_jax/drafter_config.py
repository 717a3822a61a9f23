"""Settings of a DFlash drafter (arXiv 2602.06036): a small block-diffusion model that reads its target's features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specdiff_jax.config import ModelConfig
from specdiff_jax.errors import InputError

Conditioning = Literal["key_value", "input", "none"]
"""How a drafter reads the context: "key_value", as published, injects fused features into the keys and values of every
layer; the others, for comparison, run the context's tokens through the layers, with fused features added to their
embeddings ("input") or without ("none")."""


@dataclass(frozen=True)
class DraftAttention:
    """What the block's rows see in a layer.

    Attributes:
        window: positions that a row sees, itself included; None is all.
        causal: whether a slot sees none of the block's later ones.
    """

    window: int | None = None
    causal: bool = False


@dataclass(frozen=True)
class DrafterConfig:
    """A drafter, which has neither embedding nor head: it borrows its target's.

    Attributes:
        backbone: sizes, norms and rotary of its layers; `vocab_size` is the target's; 0 where the config doesn't say.
        block_size: slots that it was trained to fill, the anchor among them.
        mask_token_id: stands in the target's vocabulary for what is to be drafted.
        target_layer_ids: layers of the target behind which the residual stream is a feature, in the order in which
            they are fused.
        num_target_layers: layers of the target; None where the config doesn't say.
        attentions: what each layer's rows see.
        input_embedding_scale: multiplies the embeddings of the block.
        output_multiplier: multiplies the logits.
        final_logit_softcapping: bound c of the logits, c tanh(logits / c), behind the multiplier; None is none.
        attention_value_scale: multiplies the values.
        attention_sinks: whether each query head has a learned logit that takes mass and gives nothing.
        conditioning: how it reads the context.
    """

    backbone: ModelConfig
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    attentions: tuple[DraftAttention, ...]
    num_target_layers: int | None = None
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    attention_value_scale: float = 1.0
    attention_sinks: bool = False
    conditioning: Conditioning = "key_value"


def check_pair(config: DrafterConfig, target: ModelConfig, drafter_name: str, target_name: str) -> None:
    """Whether a drafter was made for a target.

    Raises:
        InputError: one line with everything in which the two don't fit.
    """
    sizes = {
        "hidden_size": (config.backbone.hidden_size, target.hidden_size),
        "vocab_size": (config.backbone.vocab_size or target.vocab_size, target.vocab_size),
        "num_target_layers": (config.num_target_layers or target.num_layers, target.num_layers),
    }
    faults = [f"{name} {ours}, but {target_name} has {its}" for name, (ours, its) in sizes.items() if ours != its]
    deepest = max(config.target_layer_ids)
    if deepest >= target.num_layers:
        faults.append(f"target_layer_ids up to {deepest}, but {target_name} has {target.num_layers} layers")
    if config.mask_token_id >= target.vocab_size:
        faults.append(f"mask_token_id {config.mask_token_id}, but {target_name} has {target.vocab_size} tokens")
    if faults:
        raise InputError(f"drafter {drafter_name} was made for another target: {'; '.join(faults)}")
