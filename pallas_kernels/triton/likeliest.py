"""The likeliest few of a vocabulary in two launches, the first of which alone reads all logits.

The largest logits of a row lie in the parts of the vocabulary that have the largest peaks. So the first launch takes
no more from a part than its peak and its mass, a maximum and a sum, which is little work beside the reading; the second
reads again only those parts, one for each rank, that the peaks point to. Lists of candidates from every part would cost
the first launch several instructions a logit and rank.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float32, Int

from pallas_kernels.triton.launch import LOWEST, lanes, launch
from pallas_kernels.triton.softmax import LOG2_E

PART = 4096
"""Logits that a program takes: few enough to stay in registers, so that all are asked for at once and read once."""


def likeliest(
    logits: Float32[Array, "rows vocab"], banned: int, ranks: int
) -> tuple[Int[Array, "rows ranks"], Float32[Array, "rows ranks"], Float32[Array, " rows"]]:
    """The results of `pallas_kernels.likeliest.likeliest`."""
    rows, vocab = logits.shape
    parts = pl.cdiv(vocab, PART)
    of_parts = jax.ShapeDtypeStruct((rows, parts), jnp.float32)
    peaks, masses = launch(
        functools.partial(_measure, banned=banned),
        "likeliest_parts",
        [of_parts, of_parts],
        (parts, rows),  # neighbours run together, and read what stands together
        logits,
    )
    shape = (rows, ranks)
    ids, values, total = launch(
        functools.partial(_find, banned=banned),
        "likeliest",
        [
            jax.ShapeDtypeStruct(shape, jnp.int32),
            jax.ShapeDtypeStruct(shape, jnp.float32),
            jax.ShapeDtypeStruct((rows,), jnp.float32),
        ],
        (rows,),
        logits,
        peaks,
        masses,
        warps=8,
    )
    return ids, values, total


def _measure(logits: Any, peaks: Any, masses: Any, *, banned: int) -> None:
    """Of a part the largest logit, and the sum of the exponentials beside it."""
    part, row = pl.program_id(0), pl.program_id(1)
    _, values = _part(logits, row, part, banned)
    peak = jnp.max(values)
    plt.store(peaks.at[row, part], peak)
    plt.store(masses.at[row, part], jnp.sum(jnp.exp2((values - jnp.maximum(peak, LOWEST)) * LOG2_E)))


def _find(logits: Any, peaks: Any, masses: Any, ids: Any, values: Any, total: Any, *, banned: int) -> None:
    """Rank by rank the first part with the largest peak, and there the first logit that is as large."""
    row = pl.program_id(0)
    parts = lanes(peaks.shape[1])
    at, real = (jnp.full_like(parts, row), parts), parts < peaks.shape[1]
    best = plt.load(peaks.at[at], mask=real, other=-jnp.inf)
    mass = plt.load(masses.at[at], mask=real, other=0.0)
    top = jnp.maximum(jnp.max(best), LOWEST)
    plt.store(total.at[row], top + jnp.log(jnp.sum(mass * jnp.exp(best - top))))

    def find(rank: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        best, last_value, last_id = state
        part = jnp.argmax(best)
        columns, logit = _part(logits, row, part, banned)
        behind = (logit < last_value) | ((logit == last_value) & (columns > last_id))
        left = jnp.where(behind, logit, -jnp.inf)
        found, value = part * PART + jnp.argmax(left), jnp.max(best)
        plt.store(ids.at[row, rank], found)
        plt.store(values.at[row, rank], value)
        next_best = jnp.max(jnp.where(columns == found, -jnp.inf, left))
        return jnp.where(parts == part, next_best, best), value, found

    jax.lax.fori_loop(0, ids.shape[1], find, (best, jnp.float32(jnp.inf), jnp.int32(-1)))


def _part(logits: Any, row: jax.Array, part: jax.Array, banned: int) -> tuple[jax.Array, jax.Array]:
    """Ids and logits of a part; minus infinity for the banned one and behind the end of the vocabulary."""
    vocab = logits.shape[1]
    columns = part * PART + lanes(PART)
    values = plt.load(logits.at[jnp.full_like(columns, row), columns], mask=columns < vocab, other=-jnp.inf)
    return columns, jnp.where(columns == banned, -jnp.inf, values) if 0 <= banned < vocab else values
