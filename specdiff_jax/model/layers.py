"""The parts that every layer shares: token lookup, initial weights, RMSNorm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.contraction import contract
from pallas_kernels.projection import normalize

INITIALIZER_STD = 0.02


@jax.custom_vjp
def lookup(table: Float[Array, "vocab hidden"], tokens: Int[Array, "*rows"]) -> Float[Array, "*rows hidden"]:
    """Rows of the embedding, with a gradient that is a product with one-hot rows.

    The gradient of plain indexing is a scatter-add, in which all rows that hold the same token (half of a noisy text is
    the mask token) wait for one another: on a GPU it can take ten times as long as the rest of a training step. The
    one-hot rows take vocab numbers a token, like its logits. Sums are float32.
    """
    return table[tokens]


def _lookup_forward(table: Array, tokens: Array) -> tuple[Array, tuple[Array, Array]]:
    return lookup(table, tokens), (table, tokens)


def _lookup_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, None]:
    table, tokens = saved
    one_hot = jax.nn.one_hot(tokens.reshape(-1), table.shape[0], dtype=gradient.dtype)
    summed = contract("rv,rh->vh", one_hot, gradient.reshape(-1, table.shape[1]), jnp.float32)
    return summed.astype(table.dtype), None


lookup.defvjp(_lookup_forward, _lookup_backward)


def normal_param(rngs: nnx.Rngs, shape: tuple[int, ...], dtype: DTypeLike) -> nnx.Param:
    """A parameter drawn from N(0, 0.02^2), the initialisation of every supported family."""
    return nnx.Param(INITIALIZER_STD * jax.random.normal(rngs.params(), shape, dtype))


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation: statistics in float32, cast to the input's dtype, then times the weight."""

    def __init__(self, size: int, eps: float, dtype: DTypeLike) -> None:
        self.weight = nnx.Param(jnp.ones((size,), dtype))
        self.eps = eps

    def __call__(self, x: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
        """Normalise the last axis."""
        return normalize(x, self.eps) * self.weight[...]
