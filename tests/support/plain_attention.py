"""Attention without weights: its rows are queries, keys and values."""

from __future__ import annotations

import jax
from flax import nnx

from specdiff_jax.model.attention import Attention


class PlainAttention(Attention):
    """Of heads that no norm stands before."""

    def __init__(self, kv_heads: int, group: int, head_dim: int, bias: jax.Array | None = None) -> None:
        self.per_kv_head = (kv_heads, group + 2, head_dim)
        self.qkv_bias = None if bias is None else nnx.Param(bias)
        self.qk_norm = None

    def products(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:2], *self.per_kv_head)
