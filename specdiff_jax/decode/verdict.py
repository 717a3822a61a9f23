"""What a denoising step, and drafting for the next one, need of a distribution over the vocabulary."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from pallas_kernels.implementation import Implementation
from pallas_kernels.likeliest import Likeliest, largest, likeliest
from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.decode.denoise import propose
from specdiff_jax.decode.sampling import Sampling
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
    ranked, best, total = likeliest(logits, spec.mask_token_id, ranks)
    return Verdict(tokens, confidence, ranked, _shares(best, total))


def judge_greedily(model: Decoder, hidden: Float[Array, "*batch slots hidden"], spec: BlockSpec, ranks: int) -> Verdict:
    """The verdict of greedy decoding, with at most `LOGIT_BYTES` of logits in memory at a time.

    Through a kernel where the model's forwards of such rows run through kernels.

    Args:
        model: the target, whose head is read once.
        hidden: the row that speaks for each slot.
        spec: the family's rules.
        ranks: how many of the likeliest tokens are kept.
    """
    implementation: Implementation = "triton" if model.branch_kernels(hidden.shape[-2]) else "xla"
    chunk = max(1, LOGIT_BYTES // (4 * math.prod(hidden.shape[:-1])))

    def of_chunk(start: int) -> Likeliest:
        logits = model.logits(hidden, slice(start, start + chunk))
        count = min(ranks, logits.shape[-1])
        found = likeliest(logits, spec.mask_token_id - start, count, implementation=implementation)
        return found._replace(ids=start + found.ids)

    chunks = map(of_chunk, range(0, model.config.vocab_size, chunk))
    ranked, best, total = functools.reduce(functools.partial(_of_both, ranks=ranks), chunks)
    probabilities = _shares(best, total)
    return Verdict(ranked[..., 0], probabilities[..., 0], ranked, probabilities)


def _of_both(first: Likeliest, second: Likeliest, ranks: int) -> Likeliest:
    """Earlier chunks first: of equal logits the lower id counts, as in an argmax over all."""
    ids = jnp.concatenate([first.ids, second.ids], axis=-1)
    values = jnp.concatenate([first.values, second.values], axis=-1)
    places, best = largest(values, min(ranks, values.shape[-1]))
    total = jnp.logaddexp(first.logsumexp, second.logsumexp)
    return Likeliest(jnp.take_along_axis(ids, places, axis=-1), best, total)


def _shares(best: Float[Array, "*rows ranks"], total: Float[Array, "*rows"]) -> Float[Array, "*rows ranks"]:
    return jnp.exp(best - total[..., None])
