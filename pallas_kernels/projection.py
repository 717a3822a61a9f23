"""What stands in front of a product: residual sum, gather and RMSNorm (family 3)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.implementation import Implementation
from pallas_kernels.rows import RowPlan, compact
from pallas_kernels.triton import projection as triton


def normed_rows(
    hidden: Float[Array, "groups rows size"],
    added: Float[Array, "groups rows size"] | None,
    weight: Float[Array, " size"],
    eps: float,
    plan: RowPlan | None,
    *,
    places: int | None = None,
    implementation: Implementation = "xla",
) -> Float[Array, "groups places size"]:
    """RMSNorm of the rows that a plan computes, side by side, or of all rows.

    Args:
        hidden: residual streams.
        added: what is added to them first, rounded to their dtype.
        weight: of the norm.
        eps: likewise.
        plan: which rows; what stands in places behind its last row is finite and of no use.
        places: how many there are; those of all rows by default.
        implementation: "triton" takes one group.
    """
    if implementation == "triton":
        index, count = (None, None) if plan is None else (plan.index[0], plan.count)
        added = None if added is None else added[0]
        return triton.normed_rows(hidden[0], added, weight, eps, index, count, places or hidden.shape[1])[None]

    def taken(rows: Array) -> Array:
        return rows if plan is None else compact(rows, plan.index[:, :places])

    rows = taken(hidden)
    if added is not None:
        rows = rows + taken(added)
    return normalize(rows, eps) * weight


def normalize(x: Float[Array, "*batch size"], eps: float) -> Float[Array, "*batch size"]:
    """x / sqrt(mean(x^2) + eps) over the last axis, in float32, returned in the input's dtype."""
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)).astype(x.dtype)
