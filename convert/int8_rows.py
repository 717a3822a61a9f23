"""Matrices as int8 with one float32 scale a row: a quarter of float32's bytes, readable without any library's help."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float32, Int8

MAX_STEPS = 127  # symmetric: -128 is left out


def scale_name(name: str) -> str:
    """The name under which a tensor's scales stand beside it."""
    return f"{name}_scale"


def quantize(
    matrix: Float[np.ndarray, "*rows columns"],
) -> tuple[Int8[np.ndarray, "*rows columns"], Float32[np.ndarray, "*rows"]]:
    """Steps and scales of finite weights; a weight is off by at most half its row's scale, max|row| / 127."""
    matrix = matrix.astype(np.float32)
    scales = np.abs(matrix).max(axis=-1) / np.float32(MAX_STEPS)
    divisors = scales[..., None]
    steps = np.divide(matrix, divisors, out=np.zeros_like(matrix), where=divisors > 0)
    # Only where a scale is so small that it lost its digits is there anything to clip.
    return np.rint(steps).clip(-MAX_STEPS, MAX_STEPS).astype(np.int8), scales


def dequantize(
    steps: Int8[np.ndarray, "*rows columns"], scales: Float32[np.ndarray, "*rows"]
) -> Float32[np.ndarray, "*rows columns"]:
    """The weights that steps and scales stand for."""
    return steps * scales[..., None]
