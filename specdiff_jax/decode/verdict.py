"""What a denoising step, and drafting for the next one, need of a distribution over the vocabulary."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.decode.denoise import propose
from specdiff_jax.decode.sampling import Sampling, without_mask
from specdiff_jax.model.decoder import Decoder

LOGIT_BYTES = 2**30
"""Logits that are in memory at a time. Where those of the whole vocabulary are fewer the head is read as it is; a GPU's
product copies a part of it first.
"""


class Verdict(NamedTuple):
    """A distribution for every slot, as far as it is needed.

    Attributes:
        tokens: what is proposed: drawn, or greedy the likeliest.
        confidence: how sure the model is of it, as the family counts that.
        ranked: the likeliest tokens, in order; the mask is none.
        probabilities: theirs, at temperature 1, shares of all but the mask.
    """

    tokens: Int[Array, "*batch slots"]
    confidence: Float[Array, "*batch slots"]
    ranked: Int[Array, "*batch slots ranks"]
    probabilities: Float[Array, "*batch slots ranks"]


def judge(
    logits: Float[Array, "batch slots vocab"],
    spec: BlockSpec,
    settings: Sampling,
    keys: Key[Array, " batch"],
    ranks: int,
) -> Verdict:
    """The verdict of whole logits.

    Args:
        logits: of every slot.
        spec: the family's rules.
        settings: how tokens are drawn.
        keys: of each row's step.
        ranks: how many of the likeliest tokens are kept.
    """
    tokens, confidence = propose(logits, spec, settings, keys)
    plain = without_mask(logits, spec.mask_token_id)
    ranked, best = _largest(plain, jnp.broadcast_to(jnp.arange(plain.shape[-1]), plain.shape), ranks)
    probabilities = jnp.exp(best - jax.nn.logsumexp(plain, axis=-1, keepdims=True))
    return Verdict(tokens, confidence, ranked, probabilities)


def judge_greedily(model: Decoder, hidden: Float[Array, "*batch slots hidden"], spec: BlockSpec, ranks: int) -> Verdict:
    """The verdict of greedy decoding, with at most `LOGIT_BYTES` of logits in memory at a time.

    Args:
        model: the target, whose head is read once.
        hidden: the row that speaks for each slot.
        spec: the family's rules.
        ranks: how many of the likeliest tokens are kept.
    """
    rows = hidden.shape[:-1]
    ranked = jnp.zeros((*rows, 0), jnp.int32)
    best = jnp.zeros((*rows, 0), jnp.float32)
    total = jnp.full(rows, -jnp.inf, jnp.float32)
    chunk = max(1, LOGIT_BYTES // (4 * total.size))
    for start in range(0, model.config.vocab_size, chunk):
        logits = model.logits(hidden, slice(start, start + chunk))
        logits = without_mask(logits, spec.mask_token_id - start)
        total = jnp.logaddexp(total, jax.nn.logsumexp(logits, axis=-1))
        ids = jnp.broadcast_to(start + jnp.arange(logits.shape[-1]), logits.shape)
        found, values = _largest(logits, ids, min(ranks, logits.shape[-1]))
        # Earlier chunks first: of equal logits the lower id counts, as in an argmax over all.
        ranked, best = _largest(
            jnp.concatenate([best, values], axis=-1),
            jnp.concatenate([ranked, found], axis=-1),
            min(ranks, best.shape[-1] + values.shape[-1]),
        )
    probabilities = jnp.exp(best - total[..., None])
    return Verdict(ranked[..., 0], probabilities[..., 0], ranked, probabilities)


def _largest(
    values: Float[Array, "*rows candidates"], ids: Int[Array, "*rows candidates"], count: int
) -> tuple[Int[Array, "*rows count"], Float[Array, "*rows count"]]:
    """Ids and values of the largest few, in order; passes over the values, since a sort costs a GPU milliseconds."""
    places = jnp.arange(values.shape[-1])
    chosen, found = [], []
    for _ in range(count):
        place = jnp.argmax(values, axis=-1, keepdims=True)
        chosen.append(jnp.take_along_axis(ids, place, axis=-1))
        found.append(jnp.take_along_axis(values, place, axis=-1))
        values = jnp.where(places == place, -jnp.inf, values)
    return jnp.concatenate(chosen, axis=-1).astype(jnp.int32), jnp.concatenate(found, axis=-1)
