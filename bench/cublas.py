"""Times of matrix products in cuBLAS, where torch with CUDA is there."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from bench.kernels import absent, key_of
from bench.products import products_of
from specdiff_jax.geometries import geometry


def measure(name: str, dtype: str, counts: Sequence[int], steps: int, repeats: int) -> dict[str, Any]:
    """Time each matrix product of a geometry with random weights.

    Args:
        name: of the geometry.
        dtype: of weights and activations.
        counts: rows.
        steps: that are timed in one go.
        repeats: how often.

    Returns:
        by `key_of` seconds and spread of one product, what ran, and the bytes of weights that it reads; or an error, or
        why there is no time.
    """
    asked = [(product, count) for product in products_of(geometry(name)) for count in counts]
    reason = obstacle()
    if reason is not None:
        return {key_of(product.name, "cublas", count): absent(reason) for product, count in asked}
    from bench.cublas_graph import time_product

    return {
        key_of(product.name, "cublas", count): time_product(product, count, dtype, "cuda", steps=steps, repeats=repeats)
        for product, count in asked
    }


def obstacle() -> str | None:
    """Why cuBLAS can't be measured here."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "torch has no CUDA here"
