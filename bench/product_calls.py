"""The matrix products of a layer, each as a call that can be repeated."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bench.products import Product
from bench.repeated import Repeated, waiting
from pallas_kernels.contraction import contract
from specdiff_jax.model.layers import INITIALIZER_STD


def drawn_weights(product: Product, dtype: str) -> list[jax.Array]:
    """As many random matrices as have to take turns."""
    keys = jax.random.split(jax.random.key(1), product.copies(jnp.dtype(dtype).itemsize))
    draw = jax.jit(lambda key: INITIALIZER_STD * jax.random.normal(key, (product.outputs, product.inputs), dtype))
    return [draw(key) for key in keys]


def repeated_product(product: Product, weights: Sequence[jax.Array], count: int) -> Repeated:
    """So many rows times each matrix, as the model does it."""
    drawn = np.random.default_rng(0).standard_normal((1, count, product.inputs), np.float32)
    rows = jnp.asarray(drawn.astype(weights[0].dtype))
    out_dtype = jnp.float32 if product.logits else None
    multiply = waiting(lambda rows, weight: contract("bsh,oh->bso", rows, weight, out_dtype))
    return Repeated(multiply, rows, weights, product.rounds(weights[0].dtype.itemsize))
