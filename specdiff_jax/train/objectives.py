"""What training minimises: block diffusion in both families' forms, and next-token prediction.

A block-diffusion text is seen twice: as it stands (x_0) and with tokens masked (x_t). A row of x_t sees its own block
of x_t and, of x_0, what stands before that block; so every block is trained as it is decoded, against a cache of
finished text, and all blocks at once. Published code computes this as one forward over [x_t | x_0]. Since x_0 never
sees x_t, here it is what it is in decoding: one commit forward of x_0, which writes the cache, then one denoising
forward of x_t against that cache. The numbers are the same, for fewer scores, and the two copies of x_t share x_0.

Each block is masked at a ratio of its own, and a second copy of x_t masks exactly the tokens that the first one
leaves (the complementary mask of Fast-dLLM v2): every token that may be masked is predicted once a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.model import Decoder, KVCache, empty_cache

Batch: TypeAlias = Mapping[str, Array]
"""`PackedTexts.take` as jax arrays: tokens, positions, segments, blocks (int32) and response (bool), [batch, width]."""

Metrics: TypeAlias = dict[str, Array]

Objective: TypeAlias = Callable[[Decoder, Batch, Key[Array, ""]], tuple[Float[Array, ""], Metrics]]
"""Loss (float32, a mean over tokens) and metrics of a batch; the key draws the masks. Pure, for `jit` and `grad`."""

_SMALLEST_RATIO = 1e-3  # Fast-dLLM v2: p = (1 - 1e-3) t + 1e-3, t uniform in (0, 1)


def fast_dllm_v2(spec: BlockSpec, clean_seed: bool = True) -> Objective:
    """The objective of Fast-dLLM v2: row i - 1 predicts token i (token shift), and x_0 is block-causal.

    Args:
        spec: the family's rules; texts are packed by the same.
        clean_seed: how the first token of a block is learnt. When decoding, it comes from the last row of the commit
            forward before, and the block begins with it. True trains that: it is never masked, and x_0's row i - 1
            predicts it. False is the published form: it is masked like the others, and predicted from x_t's row
            i - 1, the end of another noisy block.

    Returns:
        an objective with metrics loss, masked_accuracy (share of masked tokens that are the likeliest), tokens (number
        that carry loss) and, with `clean_seed`, seed_accuracy.
    """

    def objective(model: Decoder, batch: Batch, key: Key[Array, ""]) -> tuple[Float[Array, ""], Metrics]:
        predicted = _predictable(batch)
        seeds = predicted & _first_of_block(batch["blocks"]) & clean_seed
        masked, complement = complementary_masks(key, predicted & ~seeds, batch["blocks"])
        seen = forwards(model, batch, masked, complement, spec)
        rows = jnp.where(masked[..., None], _shifted(seen.masked), _shifted(seen.complement))
        if clean_seed:
            rows = jnp.where(seeds[..., None], _shifted(seen.clean), rows)
        found = _predictions(model, rows, batch["tokens"])
        loss = _mean(found.losses, predicted)
        metrics = {
            "loss": loss,
            "masked_accuracy": _mean(found.right, predicted & ~seeds),
            "tokens": jnp.sum(predicted),
        }
        if clean_seed:
            metrics["seed_accuracy"] = _mean(found.right, seeds)
        return loss, metrics

    return objective


def nemotron(spec: BlockSpec, diffusion_weight: float = 1.0, next_token_weight: float = 1.0) -> Objective:
    """The joint objective of Nemotron-Labs-Diffusion: denoising without token shift, and next-token prediction.

    From the publication: the weighted sum of both losses (it found 0.3 for diffusion and 1 for next tokens best, when
    a large autoregressive model goes on training), causal x_0, whole blocks in x_t. Chosen here, to match its decoding:
    the first token of a block is never masked, since it comes from the causal rows, and so learns as a next token;
    blocks count from the start of the response. Chosen as in Fast-dLLM v2: mask ratios and the complementary copy.

    Args:
        spec: the family's rules; texts are packed by the same.
        diffusion_weight: of the loss of masked tokens, each predicted by its own row of x_t.
        next_token_weight: of the loss of all response tokens, each predicted by the row before it in x_0.

    Returns:
        an objective with metrics loss, diffusion_loss, next_token_loss, masked_accuracy, next_token_accuracy and tokens
        (number of response tokens).
    """

    def objective(model: Decoder, batch: Batch, key: Key[Array, ""]) -> tuple[Float[Array, ""], Metrics]:
        maskable = batch["response"] & ~_first_of_block(batch["blocks"])
        predicted = _predictable(batch)
        masked, complement = complementary_masks(key, maskable, batch["blocks"])
        seen = forwards(model, batch, masked, complement, spec)
        denoised = _predictions(model, jnp.where(masked[..., None], seen.masked, seen.complement), batch["tokens"])
        following = _predictions(model, _shifted(seen.clean), batch["tokens"])
        diffusion_loss, next_token_loss = _mean(denoised.losses, maskable), _mean(following.losses, predicted)
        loss = diffusion_weight * diffusion_loss + next_token_weight * next_token_loss
        return loss, {
            "loss": loss,
            "diffusion_loss": diffusion_loss,
            "next_token_loss": next_token_loss,
            "masked_accuracy": _mean(denoised.right, maskable),
            "next_token_accuracy": _mean(following.right, predicted),
            "tokens": jnp.sum(predicted),
        }

    return objective


def next_token() -> Objective:
    """Plain next-token prediction of the responses, causal within each text.

    Returns:
        an objective with metrics loss, next_token_accuracy and tokens; it draws nothing from the key.
    """

    def objective(model: Decoder, batch: Batch, key: Key[Array, ""]) -> tuple[Float[Array, ""], Metrics]:
        visible = commit_pattern(batch, causal=True)
        hidden = model(batch["tokens"], visible=visible, positions=batch["positions"]).hidden
        predicted = _predictable(batch)
        found = _predictions(model, _shifted(hidden), batch["tokens"])
        loss = _mean(found.losses, predicted)
        accuracy = _mean(found.right, predicted)
        return loss, {"loss": loss, "next_token_accuracy": accuracy, "tokens": jnp.sum(predicted)}

    return objective


class Hidden(NamedTuple):
    """Normed rows of x_0 and of the two copies of x_t."""

    clean: Float[Array, "batch width hidden"]
    masked: Float[Array, "batch width hidden"]
    complement: Float[Array, "batch width hidden"]


def forwards(
    model: Decoder,
    batch: Batch,
    masked: Bool[Array, "batch width"],
    complement: Bool[Array, "batch width"],
    spec: BlockSpec,
) -> Hidden:
    """The commit forward of x_0, then the denoising forward of both copies of x_t against its cache."""
    tokens, positions = batch["tokens"], batch["positions"]
    size, width = tokens.shape
    cache = empty_cache(model.config, size, width, model.embedding[...].dtype)
    clean = model(tokens, cache, visible=commit_pattern(batch, spec.causal), positions=positions)
    assert clean.cache is not None
    # Copies of a text stay side by side, so that a batch that is split over devices stays where it is.
    masks = jnp.stack([masked, complement], axis=1)
    noisy = jnp.where(masks, spec.mask_token_id, tokens[:, None]).reshape(2 * size, width)
    hidden = model(
        noisy,
        _for_copies(clean.cache, width),
        visible=_twice(denoising_pattern(batch)),
        positions=_twice(positions),
    ).hidden.reshape(size, 2, width, -1)
    return Hidden(clean.hidden, hidden[:, 0], hidden[:, 1])


def complementary_masks(
    key: Key[Array, ""], maskable: Bool[Array, "batch width"], blocks: Int[Array, "batch width"]
) -> tuple[Bool[Array, "batch width"], Bool[Array, "batch width"]]:
    """Two masks that share no token and together cover all that may be masked.

    The first one masks each token of a block with probability p = (1 - 1e-3) t + 1e-3, with one t ~ U(0, 1) a block.
    """
    ratios, draws = jax.random.uniform(key, (2, *blocks.shape))  # a ratio for every number that a block may have
    ratios = _SMALLEST_RATIO + (1 - _SMALLEST_RATIO) * ratios
    masked = maskable & (draws < jnp.take_along_axis(ratios, blocks, axis=1))
    return masked, maskable & ~masked


def commit_pattern(batch: Batch, causal: bool) -> Bool[Array, "batch width width"]:
    """Which tokens of x_0 each row of x_0 sees: of its own text, what stands before it and, block-causal, its block.

    What is no text counts as one, so that its rows see something and stay finite.
    """
    width = batch["tokens"].shape[1]
    before = jnp.tri(width, dtype=bool) if causal else batch["blocks"][:, None, :] <= batch["blocks"][:, :, None]
    return _same_text(batch) & before


def denoising_pattern(batch: Batch) -> Bool[Array, "batch width keys"]:
    """Which keys each row of x_t sees: all of x_0 first, then all of x_t; keys = 2 width.

    Of x_0 the blocks before its own, and a prompt outside of blocks; of x_t its own block; both of its own text.
    """
    theirs, own = batch["blocks"][:, None, :], batch["blocks"][:, :, None]
    same = _same_text(batch)
    return jnp.concatenate([same & (theirs < own), same & (theirs == own)], axis=-1)


def cross_entropy(logits: Float[Array, "*rows vocab"], targets: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
    """-log softmax(logits)[target]; the target is picked by comparison, whose gradient is no scatter."""
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)


class _Predictions(NamedTuple):
    losses: Float[Array, "batch width"]
    right: Bool[Array, "batch width"]


def _for_copies(cache: KVCache, width: int) -> KVCache:
    """A full cache of `width` tokens for two copies of each batch row, with room for as many tokens again."""
    keys, values = jax.tree.map(
        lambda x: jnp.pad(_twice(x), ((0, 0), (0, 0), (0, width), (0, 0))), (cache.keys, cache.values)
    )
    return KVCache(keys, values, jnp.full((2 * cache.lengths.shape[0],), width, jnp.int32))


def _twice(x: Array) -> Array:
    return jnp.repeat(x, 2, axis=0)


def _same_text(batch: Batch) -> Bool[Array, "batch width width"]:
    return batch["segments"][:, :, None] == batch["segments"][:, None, :]


def _first_of_block(blocks: Int[Array, "batch width"]) -> Bool[Array, "batch width"]:
    before = jnp.pad(blocks[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    return blocks != before


def _predictable(batch: Batch) -> Bool[Array, "batch width"]:
    """Response tokens that have a row before them in their text."""
    return batch["response"] & (batch["positions"] > 0)


def _shifted(hidden: Float[Array, "batch width hidden"]) -> Float[Array, "batch width hidden"]:
    """For every token the row before it; no loss depends on what the first token of a text gets."""
    return jnp.roll(hidden, 1, axis=1)


def _predictions(
    model: Decoder, hidden: Float[Array, "batch width hidden"], targets: Int[Array, "batch width"]
) -> _Predictions:
    logits = model.logits(hidden)
    return _Predictions(cross_entropy(logits, targets), jnp.argmax(logits, axis=-1) == targets)


def _mean(values: Array, chosen: Bool[Array, "batch width"]) -> Float[Array, ""]:
    """Mean of the chosen values, 0 of none."""
    return jnp.sum(jnp.where(chosen, values, 0.0)) / jnp.maximum(jnp.sum(chosen), 1)
