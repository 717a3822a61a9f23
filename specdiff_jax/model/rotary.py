"""Rotary position embedding (rotate-half form) with the frequencies that the config resolved."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdiff_jax.config import RotaryConfig


class RotaryTable(NamedTuple):
    """What the rows of one forward need: float32 cos and sin, and the query multiplier where the family has one."""

    cos: Float[Array, "batch rows half"]
    sin: Float[Array, "batch rows half"]
    query_scale: Float[Array, "batch rows"] | None


def rotary_table(config: RotaryConfig, positions: Int[Array, "batch rows"]) -> RotaryTable:
    """Angles of every row, in float32.

    The query scale is the Llama-4 rule that Nemotron-Labs-Diffusion uses; it is exactly 1 below
    `original_max_position`.
    """
    frequencies = jnp.asarray(np.asarray(config.inverse_frequencies, np.float32))
    angles = positions[..., None].astype(jnp.float32) * frequencies
    scale = None
    if config.query_scale_beta is not None:
        assert config.original_max_position is not None
        periods = (positions // config.original_max_position).astype(jnp.float32)
        scale = 1.0 + config.query_scale_beta * jnp.log1p(periods)
    factor = config.attention_factor
    return RotaryTable(jnp.cos(angles) * factor, jnp.sin(angles) * factor, scale)


def rotate(x: Float[Array, "batch rows *heads size"], table: RotaryTable) -> Float[Array, "batch rows *heads size"]:
    """Rotate each pair (x[i], x[i + half]) of the first 2 half numbers by its angle; the rest, if any, stays.

    Computed in float32, returned in the input's dtype.
    """
    extra = tuple(range(2, x.ndim - 1))
    cos, sin = jnp.expand_dims(table.cos, extra), jnp.expand_dims(table.sin, extra)
    half = table.cos.shape[-1]
    first, second, rest = jnp.split(x.astype(jnp.float32), (half, 2 * half), axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1).astype(x.dtype)
