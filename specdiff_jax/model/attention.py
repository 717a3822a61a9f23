"""Grouped-query attention against a key/value cache."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.contraction import contract
from pallas_kernels.decode_attention import decode_attention, supports
from pallas_kernels.head_norm import HeadNorm
from pallas_kernels.implementation import Implementation
from pallas_kernels.projection import normalize
from pallas_kernels.triton import attention as branch_kernel
from specdiff_jax.config import ModelConfig
from specdiff_jax.model.cache import write
from specdiff_jax.model.layers import normal_param
from specdiff_jax.model.rotary import RotaryTable, rotate

LayerCache = tuple[Array, Array]
"""Keys and values of one layer, each (batch, kv_heads, capacity, head_dim)."""


Visible = Int[Array, "batch rows"] | Bool[Array, "batch rows keys"]
"""Which keys each row sees: a number of them, counted from position 0, or any pattern."""


class Rows(NamedTuple):
    """What the rows of a forward share in every layer.

    Attributes:
        rotary: their angles.
        starts: tokens that stand before the first row of each batch row.
        visible: which keys each row sees; None is causal (position + 1).
    """

    rotary: RotaryTable
    starts: Int[Array, " batch"]
    visible: Visible | None


def attend(
    queries: Float[Array, "batch rows kv_heads group head_dim"],
    keys: Float[Array, "batch kv_heads capacity head_dim"],
    values: Float[Array, "batch kv_heads capacity head_dim"],
    visible: Visible,
    sinks: Float[Array, "kv_heads group"] | None = None,
) -> Float[Array, "batch rows kv_heads group head_dim"]:
    """Softmax attention in which row i sees the first `visible[i]` keys, or those that its pattern names; scores and
    softmax in float32.

    One number a row is enough for every pattern of decoding: causal (position + 1), block-causal (end of the row's
    block) and bidirectional inside a block (length + block). `sinks` are logits that take part in each head's softmax
    and bring no value.
    """
    scores = contract("bskgd,bktd->bksgt", queries, keys, jnp.float32) * queries.shape[-1] ** -0.5
    if visible.ndim == 2:
        visible = jnp.arange(keys.shape[2]) < visible[:, :, None]
    seen = visible[:, None, :, None, :]
    scores = jnp.where(seen, scores, -jnp.inf)
    if sinks is not None:
        sink = jnp.broadcast_to(sinks.astype(jnp.float32)[:, None, :, None], (*scores.shape[:-1], 1))
        scores = jnp.concatenate([scores, sink], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : keys.shape[2]]
    return contract("bksgt,bktd->bskgd", weights.astype(values.dtype), values)


def flash_attend(
    queries: Float[Array, "batch rows kv_heads group head_dim"],
    keys: Float[Array, "batch kv_heads keys head_dim"],
    values: Float[Array, "batch kv_heads keys head_dim"],
    visible: Bool[Array, "batch rows keys"],
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "batch rows kv_heads group head_dim"]:
    """`attend` for patterns, with scores that never leave the chip: training would move them through memory ten times.

    Rows that see nothing are undefined.
    """
    heads = queries.reshape(*queries.shape[:2], -1, queries.shape[-1])
    mixed = jax.nn.dot_product_attention(
        heads, keys.swapaxes(1, 2), values.swapaxes(1, 2), mask=visible[:, None], implementation=implementation
    )
    return mixed.reshape(queries.shape)


def supports_flash(head_dim: int, dtype: DTypeLike) -> bool:
    """Whether cuDNN's kernel takes the shapes."""
    return jnp.dtype(dtype) == jnp.bfloat16 and head_dim % 8 == 0 and head_dim <= 128


class QKNorm(nnx.Module):
    """RMSNorm of every head: one weight for the queries, another for the keys."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike) -> None:
        self.query = nnx.Param(jnp.ones((config.head_dim,), dtype))
        self.key = nnx.Param(jnp.ones((config.head_dim,), dtype))
        self.group = config.group_size
        self.eps = config.rms_norm_eps

    def __call__(
        self, heads: Float[Array, "batch rows kv_heads group_and_key head_dim"]
    ) -> Float[Array, "batch rows kv_heads group_and_key head_dim"]:
        """Normalise the queries of each group and the key that stands behind them."""
        is_key = jnp.arange(self.group + 1)[:, None] == self.group
        return normalize(heads, self.eps) * jnp.where(is_key, self.key[...], self.query[...])


class Attention(nnx.Module):
    """Projections, optional q/k norms, rotary and attention.

    Matrices are stored (out, in), as in the checkpoint: a single row then reads them as contiguous rows at the full
    memory rate. Queries, keys and values come from one matrix, so that a layer reads it in one GEMM; its rows are
    grouped by key/value head ([group queries, key, value] of each), so that sharding the first axis splits all three
    alike.
    """

    def __init__(
        self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs, implementation: Implementation
    ) -> None:
        size = config.head_dim
        self.decode_kernel = implementation == "triton" and supports(config.group_size, size, dtype)
        self.branch_kernels = implementation == "triton" and branch_kernel.supports(config.group_size, size, dtype)
        self.flash = implementation == "triton" and supports_flash(size, dtype)
        self.per_kv_head = (config.num_kv_heads, config.group_size + 2, size)
        rows = (config.num_heads + 2 * config.num_kv_heads) * size
        self.qkv = normal_param(rngs, (rows, config.hidden_size), dtype)
        self.qkv_bias = nnx.Param(jnp.zeros((rows,), dtype)) if config.qkv_bias else None
        self.out = normal_param(rngs, (config.hidden_size, config.num_heads * size), dtype)
        self.out_bias = nnx.Param(jnp.zeros((config.hidden_size,), dtype)) if config.output_bias else None
        self.qk_norm = QKNorm(config, dtype) if config.qk_norm else None

    def __call__(
        self, x: Float[Array, "batch rows hidden"], rows: Rows, cached: LayerCache | None
    ) -> tuple[Float[Array, "batch rows hidden"], LayerCache]:
        """Attention output and the layer's (keys, values) with the new rows in them.

        Without a cache the new rows are the only keys.
        """
        projected = self.projected(x)
        one_causal_row = x.shape[1] == 1 and rows.visible is None
        if self.decode_kernel and one_causal_row and cached is not None:
            mixed, cached = self._decode(projected, rows, cached)
        else:
            mixed, cached = self._attend(projected, rows, cached)
        return self.project_out(mixed), cached

    @property
    def bias_of_heads(self) -> Float[Array, "kv_heads group_key_value head_dim"] | None:
        """The bias of queries, keys and values, as they stand in `products`."""
        return None if self.qkv_bias is None else self.qkv_bias[...].reshape(self.per_kv_head)

    @property
    def head_norm(self) -> HeadNorm | None:
        """The norm of queries and keys, as kernels take it."""
        norm = self.qk_norm
        return None if norm is None else HeadNorm(norm.query[...], norm.key[...], norm.eps)

    def project_out(
        self, mixed: Float[Array, "batch rows kv_heads group head_dim"]
    ) -> Float[Array, "batch rows hidden"]:
        """From mixed values to the residual stream."""
        out = contract("bso,ho->bsh", mixed.reshape(*mixed.shape[:2], -1), self.out[...])
        return out if self.out_bias is None else out + self.out_bias[...]

    def projected(
        self, x: Float[Array, "batch rows hidden"]
    ) -> Float[Array, "batch rows kv_heads group_key_value head_dim"]:
        """For each key/value head its group of queries, its key and its value, without position."""
        projected, bias = self.products(x), self.bias_of_heads
        return projected if bias is None else projected + bias

    def products(
        self, x: Float[Array, "batch rows hidden"]
    ) -> Float[Array, "batch rows kv_heads group_key_value head_dim"]:
        """`projected` before the bias."""
        return contract("bsh,oh->bso", x, self.qkv[...]).reshape(*x.shape[:2], *self.per_kv_head)

    def rotated(
        self, projected: Float[Array, "batch rows kv_heads group_key_value head_dim"], rotary: RotaryTable
    ) -> tuple[
        Float[Array, "batch rows kv_heads group head_dim"],
        Float[Array, "batch rows kv_heads head_dim"],
        Float[Array, "batch rows kv_heads head_dim"],
    ]:
        """Queries, keys and values of some rows, normed and rotated."""
        rotated, values = projected[..., :-1, :], projected[..., -1, :]
        if self.qk_norm is not None:
            rotated = self.qk_norm(rotated)
        rotated = rotate(rotated, rotary)  # queries and their key in one pass: small steps are bound by launches
        queries, keys = rotated[..., :-1, :], rotated[..., -1, :]
        if rotary.query_scale is not None:
            queries = (queries * rotary.query_scale[..., None, None, None]).astype(projected.dtype)
        return queries, keys, values

    def _attend(self, projected: Array, rows: Rows, cached: LayerCache | None) -> tuple[Array, LayerCache]:
        """Any number of rows, any visibility, in plain JAX."""
        queries, keys, values = self.rotated(projected, rows.rotary)
        keys, values = keys.swapaxes(1, 2), values.swapaxes(1, 2)
        if cached is not None:
            keys, values = write(cached[0], keys, rows.starts), write(cached[1], values, rows.starts)
        visible = rows.visible
        if visible is None:
            visible = rows.starts[:, None] + jnp.arange(1, projected.shape[1] + 1, dtype=jnp.int32)
        even = queries.shape[1] % 2 == 0 and keys.shape[2] % 2 == 0  # as cuDNN's gradient of a masked product asks
        if self.flash and visible.ndim == 3 and even:
            return flash_attend(queries, keys, values, visible), (keys, values)
        return attend(queries, keys, values, visible), (keys, values)

    def _decode(self, projected: Array, rows: Rows, cached: LayerCache) -> tuple[Array, LayerCache]:
        """One row, causal, in one kernel."""
        rotary = rows.rotary
        scale = jnp.full(rows.starts.shape, projected.shape[-1] ** -0.5, jnp.float32)
        if rotary.query_scale is not None:
            scale = scale * rotary.query_scale[:, 0]
        mixed, keys, values = decode_attention(
            projected[:, 0], *cached, rows.starts, rotary.cos[:, 0], rotary.sin[:, 0], scale, self.head_norm
        )
        return mixed[:, None], (keys, values)
