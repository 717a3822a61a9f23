"""The paper's correction of a folded row's softmax state: what its branch has changed goes out and comes in (family 5).

Subtraction cancels: where nearly all of the attention was on changed keys, little of the state survives, and what does
is mostly rounding error. Such rows are left to attention to the row's own branch (`surviving` says which).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from pallas_kernels.attention import SoftmaxState
from pallas_kernels.contraction import contract

GUARD = 1e-2
"""Surviving mass below which a corrected state is not taken: its relative error passes 1e-4 in float32."""


class Correction(NamedTuple):
    """Corrected states.

    Attributes:
        state: of every row, over the keys that its branch sees.
        surviving: share of the softmax sum that was left after removal; 1 where nothing was changed.
    """

    state: SoftmaxState
    surviving: Float[Array, "batch branches slots kv_heads group"]


def correct_state(
    ancestor: SoftmaxState,
    queries: Float[Array, "batch branches slots kv_heads group head_dim"],
    keys: Float[Array, "batch branches slots kv_heads head_dim"],
    values: Float[Array, "batch branches slots kv_heads head_dim"],
    source: Int[Array, "batch branches slots"],
    seen: Bool[Array, "batch branches slots keys"],
) -> Correction:
    """From the state of each row's source to that of its own branch.

    A row's branch and that of its source differ in the slots that they read from different branches, and in no others
    (SpecFold, section 3: the union of what was recomputed on the way from one to the other).

    Args:
        ancestor: state of each row's source, over the cache and the source's own branch.
        queries: of each row's source.
        keys: as each branch reads them.
        values: as each branch reads them.
        source: of each row.
        seen: which slots of its own branch each row sees; its source sees the same ones.
    """
    scale = queries.shape[-1] ** -0.5
    values = values.astype(jnp.float32)
    keys_of_source, values_of_source, read_by_source = (_rows_of(table, source) for table in (keys, values, source))
    changed = (source[:, :, None] != read_by_source) & seen
    changed = changed[:, :, :, None, None]
    old = contract("bxskgd,bxstkd->bxskgt", queries, keys_of_source, jnp.float32) * scale
    new = contract("bxskgd,bxtkd->bxskgt", queries, keys, jnp.float32) * scale

    removed = jnp.where(changed, jnp.exp(old - ancestor.max[..., None]), 0.0)
    left = ancestor.sum - removed.sum(axis=-1)
    left_acc = ancestor.acc - contract("bxskgt,bxstkd->bxskgd", removed, values_of_source)

    top = jnp.maximum(ancestor.max, jnp.max(jnp.where(changed, new, -jnp.inf), axis=-1))
    added = jnp.where(changed, jnp.exp(new - top[..., None]), 0.0)
    rescaled = jnp.exp(ancestor.max - top)
    state = SoftmaxState(
        top,
        left * rescaled + added.sum(axis=-1),
        left_acc * rescaled[..., None] + contract("bxskgt,bxtkd->bxskgd", added, values),
    )
    return Correction(state, left / ancestor.sum)


def _rows_of(
    table: Shaped[Array, "batch branches *rest"], source: Int[Array, "batch branches slots"]
) -> Shaped[Array, "batch branches slots *rest"]:
    """For every row what the table holds for its source's branch."""
    return jax.vmap(lambda of, at: of[at])(table, source)
