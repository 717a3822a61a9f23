"""One denoising step: which tokens are proposed for a block, and which of them are accepted."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.decode.sampling import Sampling, candidates, draw, without_mask


def propose(
    logits: Float[Array, "batch slots vocab"], spec: BlockSpec, settings: Sampling, keys: Key[Array, " batch"]
) -> tuple[Int[Array, "batch slots"], Float[Array, "batch slots"]]:
    """The token of every slot, and how sure the model is of it.

    The mask is left out, so that a step never commits nothing; probabilities are shares of the rest. A slot's draw
    depends on its row's key and its place alone.

    Returns:
        tokens, and their probabilities in float32.
    """
    batch, slots, vocab = logits.shape
    logits = without_mask(logits, spec.mask_token_id).reshape(-1, vocab)
    slot_keys = jax.vmap(lambda key: jax.vmap(lambda slot: jax.random.fold_in(key, slot))(jnp.arange(slots)))(keys)
    kept = candidates(logits, settings)
    tokens = draw(kept, settings, slot_keys.reshape(-1))
    judged = kept if spec.filtered_confidence else logits
    chosen = jnp.take_along_axis(judged, tokens[:, None], axis=1)[:, 0]
    confidence = jnp.exp(chosen - jax.nn.logsumexp(judged, axis=-1))
    return tokens.reshape(batch, slots), confidence.reshape(batch, slots)


def accept(
    block: Int[Array, "batch slots"],
    tokens: Int[Array, "batch slots"],
    confidence: Float[Array, "batch slots"],
    spec: BlockSpec,
    threshold: Float[Array, ""],
) -> Int[Array, "batch slots"]:
    """The block after a step: of the first sub-block that has masks, every slot that is sure enough and the surest one.

    So a step commits at least one token where there is a mask, and nothing where there is none.
    """
    masked = block == spec.mask_token_id
    sub_blocks = jnp.arange(block.shape[1]) // spec.sub_block
    active = masked & (sub_blocks == active_sub_block(masked, spec)[:, None])
    sure = confidence > threshold if spec.strict else confidence >= threshold
    surest = jnp.argmax(jnp.where(active, confidence, -1.0), axis=1)
    accepted = active & (sure | (jnp.arange(block.shape[1]) == surest[:, None]))
    return jnp.where(accepted, tokens, block)


def active_sub_block(masked: Bool[Array, "batch slots"], spec: BlockSpec) -> Int[Array, " batch"]:
    """Number of the sub-block that is being filled: the first with a mask (0 where there is none)."""
    return jnp.argmax(masked, axis=1) // spec.sub_block
