"""The likeliest few of a vocabulary, and what makes shares of their logits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from pallas_kernels.implementation import Implementation
from pallas_kernels.triton import likeliest as triton


class Likeliest(NamedTuple):
    """Of every row.

    Attributes:
        ids: of the largest logits, in order; of equal ones the lower id comes first.
        values: theirs.
        logsumexp: of all logits but the banned one.
    """

    ids: Int[Array, "*rows ranks"]
    values: Float32[Array, "*rows ranks"]
    logsumexp: Float32[Array, "*rows"]


def likeliest(
    logits: Float32[Array, "*rows vocab"], banned: int, ranks: int, *, implementation: Implementation = "xla"
) -> Likeliest:
    """The largest logits of every row, and the log-sum-exp that they are shares of.

    Args:
        logits: finite, or minus infinity.
        banned: an id that does not count; outside of the vocabulary there is none.
        ranks: how many of the largest.
        implementation: "triton" reads the logits once.
    """
    *rows, vocab = logits.shape
    if implementation == "triton":
        ids, values, total = triton.likeliest(logits.reshape(-1, vocab), banned, ranks)
        return Likeliest(ids.reshape(*rows, ranks), values.reshape(*rows, ranks), total.reshape(rows))
    allowed = jnp.where(jnp.arange(vocab) == banned, -jnp.inf, logits)
    return Likeliest(*largest(allowed, ranks), jax.nn.logsumexp(allowed, axis=-1))


def largest(
    values: Float[Array, "*rows candidates"], count: int
) -> tuple[Int[Array, "*rows count"], Float[Array, "*rows count"]]:
    """Places and values of the largest few, in order; passes over the values, since a sort costs a GPU milliseconds."""
    places, found = [], []
    for _ in range(count):
        place = jnp.argmax(values, axis=-1, keepdims=True)
        places.append(place)
        found.append(jnp.take_along_axis(values, place, axis=-1))
        values = jnp.where(jnp.arange(values.shape[-1]) == place, -jnp.inf, values)
    return jnp.concatenate(places, axis=-1).astype(jnp.int32), jnp.concatenate(found, axis=-1)
