"""Whether two models are the same, to the bit."""

from __future__ import annotations

import jax
import numpy as np

from specdiff_jax.loading import Model


def leaves(model: Model) -> list[np.ndarray]:
    """Every weight."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(model.params)]


def assert_same_model(found: Model, expected: Model) -> None:
    """Settings, module, stop ids and weights are equal."""
    assert found.config == expected.config
    assert found.graphdef == expected.graphdef
    assert found.stop_ids == expected.stop_ids
    assert jax.tree.structure(found.params) == jax.tree.structure(expected.params)
    for ours, theirs in zip(leaves(found), leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
