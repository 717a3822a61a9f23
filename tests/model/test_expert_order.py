"""Grouping of slots by expert, against a stable sort."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specdiff_jax.model.feed_forward import expert_order

SLOTS, EXPERTS = 12, 5
order = jax.jit(partial(expert_order, num_experts=EXPERTS))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, EXPERTS - 1), min_size=SLOTS, max_size=SLOTS))
def test_expert_order_is_a_stable_sort(experts: list[int]) -> None:
    place, sizes = order(jnp.array(experts))
    expected = np.empty(SLOTS, int)
    expected[np.argsort(experts, kind="stable")] = np.arange(SLOTS)
    assert place.tolist() == expected.tolist()
    assert sizes.tolist() == np.bincount(experts, minlength=EXPERTS).tolist()
