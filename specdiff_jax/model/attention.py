"""Grouped-query attention against a key/value cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from specdiff_jax.config import ModelConfig
from specdiff_jax.model.cache import write
from specdiff_jax.model.layers import RMSNorm, contract, normal_param
from specdiff_jax.model.rotary import RotaryTable, rotate


def attend(
    queries: Float[Array, "batch rows kv_heads group head_dim"],
    keys: Float[Array, "batch kv_heads capacity head_dim"],
    values: Float[Array, "batch kv_heads capacity head_dim"],
    visible: Int[Array, "batch rows"],
) -> Float[Array, "batch rows kv_heads group head_dim"]:
    """Softmax attention in which row i sees the first `visible[i]` keys; scores and softmax in float32.

    One number a row is enough for every pattern here: causal (position + 1), block-causal (end of the row's block) and
    bidirectional inside a block (length + block).
    """
    scores = contract("bskgd,bktd->bkgst", queries, keys, jnp.float32) * queries.shape[-1] ** -0.5
    seen = jnp.arange(keys.shape[2]) < visible[:, None, None, :, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return contract("bkgst,bktd->bskgd", weights.astype(values.dtype), values)


class Attention(nnx.Module):
    """Projections, optional q/k norms, rotary and attention.

    Queries, keys and values come from one matrix, so that a layer reads its weights in one GEMM. Its columns are grouped by
    key/value head ([group queries, key, value] each), so that sharding that axis splits all three alike.
    """

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        kv_heads, group, size = config.num_kv_heads, config.group_size, config.head_dim
        self.qkv = normal_param(rngs, (config.hidden_size, kv_heads, group + 2, size), dtype)
        self.qkv_bias = nnx.Param(jnp.zeros((kv_heads, group + 2, size), dtype)) if config.qkv_bias else None
        self.out = normal_param(rngs, (kv_heads, group, size, config.hidden_size), dtype)
        self.out_bias = nnx.Param(jnp.zeros((config.hidden_size,), dtype)) if config.output_bias else None
        self.q_norm = RMSNorm(size, config.rms_norm_eps, dtype) if config.qk_norm else None
        self.k_norm = RMSNorm(size, config.rms_norm_eps, dtype) if config.qk_norm else None

    def __call__(
        self,
        x: Float[Array, "batch rows hidden"],
        table: RotaryTable,
        visible: Int[Array, "batch rows"],
        cached: tuple[Array, Array] | None,
        starts: Int[Array, " batch"] | None,
    ) -> tuple[Float[Array, "batch rows hidden"], tuple[Array, Array]]:
        """Attention output and the layer's (keys, values) with the new rows in them.

        Without a cache the new rows are the only keys.
        """
        projected = contract("bsh,hkgd->bskgd", x, self.qkv[...])
        if self.qkv_bias is not None:
            projected = projected + self.qkv_bias[...]
        queries, keys, values = projected[..., :-2, :], projected[..., -2, :], projected[..., -1, :]
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = rotate(queries, table), rotate(keys, table)
        if table.query_scale is not None:
            queries = (queries * table.query_scale[..., None, None, None]).astype(x.dtype)
        keys, values = keys.swapaxes(1, 2), values.swapaxes(1, 2)
        if cached is not None:
            assert starts is not None
            keys, values = write(cached[0], keys, starts), write(cached[1], values, starts)
        mixed = attend(queries, keys, values, visible)
        out = contract("bskgd,kgdh->bsh", mixed, self.out[...])
        if self.out_bias is not None:
            out = out + self.out_bias[...]
        return out, (keys, values)
