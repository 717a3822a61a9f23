"""The key/value cache: a pytree with a length per row, written in place when its owner is donated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from specdiff_jax.config import ModelConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """Keys and values of every layer; entries at and past a row's length are garbage that no query may see.

    One array a layer, never one stacked array: a loop over stacked layers would copy them.
    """

    keys: tuple[Float[Array, "batch kv_heads capacity head_dim"], ...]
    values: tuple[Float[Array, "batch kv_heads capacity head_dim"], ...]
    lengths: Int[Array, " batch"]

    @property
    def capacity(self) -> int:
        """Tokens that a row can hold."""
        return self.keys[0].shape[2]

    def with_lengths(self, lengths: Int[Array, " batch"]) -> KVCache:
        """The same contents with other lengths: how tokens are committed or cropped."""
        return dataclasses.replace(self, lengths=lengths)


def empty_cache(
    config: ModelConfig, batch: int, capacity: int, dtype: DTypeLike, sharding: NamedSharding | None = None
) -> KVCache:
    """A cache of `capacity` tokens a row, all rows empty; zeros, since uninitialised NaN would survive masking."""
    shape = (batch, config.num_kv_heads, capacity, config.head_dim)
    keys = tuple(jnp.zeros(shape, dtype, device=sharding) for _ in range(config.num_layers))
    values = tuple(jnp.zeros(shape, dtype, device=sharding) for _ in range(config.num_layers))
    return KVCache(keys, values, jnp.zeros((batch,), jnp.int32))


def write(
    buffer: Float[Array, "batch kv_heads capacity head_dim"],
    rows: Float[Array, "batch kv_heads rows head_dim"],
    starts: Int[Array, " batch"],
) -> Float[Array, "batch kv_heads capacity head_dim"]:
    """Put `rows` at each batch row's own start. The caller keeps start + rows within the capacity."""
    if buffer.shape[0] == 1:  # a plain slice update stays in place on every backend; the batched form is a scatter
        return jax.lax.dynamic_update_slice(buffer, rows, (0, 0, starts[0], 0))
    return jax.vmap(lambda b, r, s: jax.lax.dynamic_update_slice(b, r, (0, s, 0)))(buffer, rows, starts)
