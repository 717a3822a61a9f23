"""Token lookup and its gradient, against plain indexing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdiff_jax.model.layers import lookup

# Every token stands many times, and token 5 never.
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 5, (3, 50)))


def weighted_sum(rows: jax.Array) -> jax.Array:
    weights = jnp.asarray(np.random.default_rng(1).standard_normal(rows.shape), jnp.float32)
    return jnp.sum(jnp.sin(rows.astype(jnp.float32)) * weights)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_and_their_gradient(dtype: str) -> None:
    table = jnp.asarray(np.random.default_rng(2).standard_normal((6, 4)), dtype)
    np.testing.assert_array_equal(lookup(table, TOKENS), table[TOKENS])
    found = jax.grad(lambda table: weighted_sum(lookup(table, TOKENS)))(table)
    # The truth adds up in float32, whatever the table's dtype.
    expected = jax.grad(lambda table: weighted_sum(table[TOKENS].astype(dtype)))(table.astype(jnp.float32))
    assert found.dtype == dtype
    assert np.abs(expected).max() > 1
    tolerance = 1e-5 if dtype == "float32" else 0.03
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=tolerance)


def test_the_gradient_scatters_nothing() -> None:
    table = jnp.ones((6, 4))
    assert "scatter" in str(jax.make_jaxpr(jax.grad(lambda table: table[TOKENS].sum()))(table))
    assert "scatter" not in str(jax.make_jaxpr(jax.grad(lambda table: lookup(table, TOKENS).sum()))(table))
