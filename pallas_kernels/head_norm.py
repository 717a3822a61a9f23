"""What a family that norms its heads hands to the kernels that rotate them."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Array, Float


class HeadNorm(NamedTuple):
    """Weights of the RMSNorm that queries and keys pass before the rotary."""

    query: Float[Array, " head_dim"]
    key: Float[Array, " head_dim"]
    eps: float
