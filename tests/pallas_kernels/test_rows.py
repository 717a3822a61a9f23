"""Which rows are computed and whose results the others read, against plain loops."""

from __future__ import annotations

from collections.abc import Sequence

import folded_oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.rows import (
    BY_RESIDUAL,
    FORCED,
    IDLE,
    RowPlan,
    compact,
    plan_rows,
    read_through,
    relative_residual,
)

SLOTS = 5
BRANCHES, BLOCK = 9, 32
planned = jax.jit(plan_rows, static_argnames="generations")
residual = jax.jit(relative_residual)


def random_mask(seed: int, branches: int, slots: int, count: int) -> np.ndarray:
    """Branch 0 and other rows, `count` in all."""
    mask = np.zeros(branches * slots, bool)
    mask[:slots] = True
    others = np.random.default_rng(seed).permutation(np.arange(slots, branches * slots))
    mask[others[: count - slots]] = True
    return mask.reshape(branches, slots)


def row_parents(parents: Sequence[np.ndarray] | np.ndarray, slots: int) -> np.ndarray:
    """Each row's parent, from each branch's."""
    rows = np.asarray(parents)[..., None] * slots + np.arange(slots)
    return rows.reshape(len(parents), -1)


TO_MAIN = row_parents(np.zeros((1, 2), int), SLOTS)
"""Of two branches."""


def plans(masks: Sequence[np.ndarray], parents: Sequence[np.ndarray]) -> RowPlan:
    """Of groups of one batch row each."""
    (branches, slots), groups = masks[0].shape, len(masks)
    rules = np.where(np.reshape(masks, (groups, -1)), FORCED, BY_RESIDUAL)
    folded = np.zeros(rules.shape, np.float32)
    plan = planned(folded, rules, jnp.array(0.0), row_parents(parents, slots), generations=branches - 1)
    return jax.tree.map(np.asarray, plan)


def assert_is_plan(plan: RowPlan, group: int, mask: np.ndarray, parents: np.ndarray) -> None:
    """That a group's plan is the loops' one."""
    source, places = folded_oracle.plan(mask, parents)
    slots = mask.shape[1]
    np.testing.assert_array_equal(plan.recomputed[group], mask.reshape(-1))
    np.testing.assert_array_equal(plan.source[group], (source * slots + np.arange(slots)).reshape(-1))
    assert plan.count[group] == len(places)
    assert plan.index[group, : len(places)].tolist() == [branch * slots + slot for branch, slot in places]
    assert plan.index[group].shape == (mask.size,)
    assert not plan.index[group, len(places) :].any()
    read = plan.slot[group].reshape(mask.shape)
    for branch, slot in np.ndindex(mask.shape):
        assert read[branch, slot] == places.index((source[branch, slot], slot))


@pytest.mark.parametrize("density", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("branches", [1, 2, 4, 5, 9])
def test_plans_are_those_of_plain_loops(branches: int, density: float) -> None:
    """Of forests from a star to a chain, each with its own rows."""
    generator = np.random.default_rng(branches)
    chain = np.maximum(np.arange(branches) - 1, 0)
    parents = [np.zeros(branches, int), chain, *(folded_oracle.random_parents(generator, branches) for _ in range(4))]
    masks = generator.random((len(parents), branches, SLOTS)) < density
    masks[:, 0] = True
    plan = plans(masks, parents)
    for group, (mask, of) in enumerate(zip(masks, parents, strict=True)):
        assert_is_plan(plan, group, mask, of)


@pytest.mark.parametrize("count", [32, 33, 63, 64, 287, 288])
def test_any_number_of_rows(count: int) -> None:
    """N, N + 1, 2N - 1, 2N, R - 1 and R rows: the plan, and what is read through it with NaN in every other place."""
    branches, slots = BRANCHES, BLOCK
    mask = random_mask(count, branches, slots, count)
    parents = folded_oracle.random_parents(np.random.default_rng(count), branches)
    plan = plans([mask], [parents])
    assert plan.count[0] == count
    assert_is_plan(plan, 0, mask, parents)

    rows = np.random.default_rng(0).normal(size=(1, branches * slots, 2, 3)).astype(np.float32)
    table = compact(jnp.array(rows), jnp.array(plan.index)).at[:, count:].set(jnp.nan)
    assert table.shape == rows.shape
    read = read_through(table, jnp.array(plan.slot))
    np.testing.assert_array_equal(read[0], rows[0][plan.source[0]])


@pytest.mark.parametrize("delta", [0.5, -1.0, np.inf])
def test_rules(delta: float) -> None:
    """A residual at the threshold is folded; idle rows are never computed and forced ones always."""
    residuals = np.array([[0.0, 0.0, 0.4, 0.5, 0.6, 9.0, np.nan, 0.0, np.nan]], np.float32)
    rules = np.array([[FORCED, *[BY_RESIDUAL] * 4, IDLE, IDLE, FORCED, FORCED]])
    plan = planned(residuals, rules, jnp.array(delta), np.zeros(rules.shape, int), generations=1)
    large = {0.5: [0, 0, 0, 1], -1.0: [1, 1, 1, 1], np.inf: [0, 0, 0, 0]}[delta]
    assert plan.recomputed[0].tolist() == [True, *map(bool, large), False, False, True, True]


def test_rows_of_numbers() -> None:
    """Rows need no axis behind them."""
    numbers = jnp.arange(12.0).reshape(1, 12)
    assert compact(numbers, jnp.array([[0, 5, 11]])).tolist() == [[0.0, 5.0, 11.0]]
    assert read_through(jnp.array([[7.0, 8.0]]), jnp.array([[0, 1, 1, 1]])).tolist() == [[7.0, 8.0, 8.0, 8.0]]


def test_siblings_may_stand_in_any_order() -> None:
    """Results are read from the same branches, by their new names."""
    parents, order = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 2, 1, 5, 4, 3])
    place = np.argsort(order)
    mask = random_mask(3, len(order), SLOTS, 14)
    rows = np.random.default_rng(0).normal(size=(len(order), SLOTS, 3)).astype(np.float32)
    plan = plans([mask, mask[order]], [parents, place[parents[order]]])
    both = jnp.array([rows, rows[order]]).reshape(2, -1, 3)
    read = read_through(compact(both, jnp.array(plan.index)), jnp.array(plan.slot)).reshape(2, *rows.shape)
    source = plan.source.reshape(2, *mask.shape) // SLOTS

    assert plan.count[0] == plan.count[1] == 14
    assert (source[0] != np.arange(len(order))[:, None]).any()
    np.testing.assert_array_equal(source[1], place[source[0][order]])
    np.testing.assert_array_equal(read[1], read[0][order])


def test_residuals() -> None:
    """To the length of the parent, not to that of the row, and branch 0 to itself."""
    generator = np.random.default_rng(0)
    hidden = generator.normal(size=(2, 5, SLOTS, 24)) * generator.uniform(0.1, 10, (2, 5, SLOTS, 1))
    hidden = hidden.astype(np.float32)
    hidden[:, 2, 1] = hidden[:, 1, 1]
    parents = np.array([[0, 0, 1, 1, 3], [0, 0, 1, 0, 2]])
    ours = np.asarray(residual(hidden.reshape(2, -1, 24), row_parents(parents, SLOTS))).reshape(2, 5, SLOTS)
    for group in range(2):
        truth = folded_oracle.relative_residual(hidden[group].astype(np.float64), parents[group])
        np.testing.assert_allclose(ours[group], truth, rtol=1e-6)
    assert not ours[:, 0].any()
    assert not ours[:, 2, 1].any()


def test_residuals_of_bfloat16_are_float32() -> None:
    """Sums of squares in bfloat16 would be off by percents."""
    hidden = jnp.array(np.random.default_rng(0).normal(size=(1, 2 * SLOTS, 512)), jnp.bfloat16)
    ours = residual(hidden, TO_MAIN)
    assert ours.dtype == jnp.float32
    truth = folded_oracle.relative_residual(np.asarray(hidden, np.float64).reshape(2, SLOTS, -1), [0, 0])
    np.testing.assert_allclose(ours[0], truth.reshape(-1), rtol=1e-6)


@pytest.mark.parametrize("child", [0.0, 1.0])
def test_residual_to_a_row_of_zeros(child: float) -> None:
    """None, or more than any threshold; never NaN."""
    hidden = jnp.concatenate([jnp.zeros((SLOTS, 8)), jnp.full((SLOTS, 8), child)])[None]
    ours = residual(hidden, TO_MAIN)[0, SLOTS:]
    assert (ours == 0).all() if child == 0 else (ours > 1e6).all()
    assert np.isfinite(ours).all()
