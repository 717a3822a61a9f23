"""What tells the block-diffusion families apart, as data."""

from __future__ import annotations

from dataclasses import dataclass

from specdiff_jax.config import ModelConfig
from specdiff_jax.errors import InputError

_FAST_DLLM_SUB_BLOCK = 8  # the published default (where it divides the block); its checkpoints don't say


@dataclass(frozen=True)
class BlockSpec:
    """How a family denoises a block of tokens.

    Attributes:
        block_size: tokens of a block.
        mask_token_id: the id that stands for a token still to be found.
        token_shift: whether the distribution of slot i comes from row i - 1 of the block; else from row i.
        causal: whether committed tokens see only what stands before them; else each sees its whole block.
        aligned: whether blocks lie at multiples of the block size, so that the end of a prompt may begin the first one;
            else they follow the prompt, wherever it ends.
        strict: whether a token is accepted with confidence above the threshold; else at it, too.
        sub_block: slots of a block are filled in runs of this width, from left to right.
        filtered_confidence: what a sampled token's confidence is: its share of the distribution that it was drawn from;
            else its probability before temperature, top-k and top-p.
    """

    block_size: int
    mask_token_id: int
    token_shift: bool
    causal: bool
    aligned: bool
    strict: bool
    sub_block: int
    filtered_confidence: bool


def block_spec(config: ModelConfig, block_size: int | None = None) -> BlockSpec:
    """The rules of a diffusion model.

    Args:
        config: the model's settings.
        block_size: in place of the one that it was trained for.

    Raises:
        InputError: its family is no diffusion family.
    """
    if config.block_size is None or config.mask_token_id is None:
        raise InputError(f"a {config.family} model is no diffusion model: decode it with method autoregressive")
    size = block_size or config.block_size
    if config.family == "fast_dllm_v2":
        return BlockSpec(
            block_size=size,
            mask_token_id=config.mask_token_id,
            token_shift=True,
            causal=False,
            aligned=True,
            strict=True,
            sub_block=max(width for width in range(1, _FAST_DLLM_SUB_BLOCK + 1) if size % width == 0),
            filtered_confidence=True,
        )
    return BlockSpec(
        block_size=size,
        mask_token_id=config.mask_token_id,
        token_shift=False,
        causal=True,
        aligned=False,
        strict=False,
        sub_block=size,
        filtered_confidence=False,
    )
