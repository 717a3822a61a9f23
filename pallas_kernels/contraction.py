"""Products at the right precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array


def contract(spec: str, x: Array, weight: Array, out_dtype: DTypeLike | None = None) -> Array:
    """`einsum` that keeps float32 at float32.

    A GPU multiplies float32 in TF32 (10-bit mantissa) unless the highest precision is asked for, which would break
    every float32 promise of this library. Precision changes nothing for bfloat16, which accumulates in float32 either
    way.

    Args:
        spec: einsum subscripts for `x` and `weight`.
        x: activations.
        weight: a parameter of the same dtype.
        out_dtype: dtype of the result; the operands' dtype by default.
    """
    return jnp.einsum(spec, x, weight, precision=jax.lax.Precision.HIGHEST, preferred_element_type=out_dtype)
