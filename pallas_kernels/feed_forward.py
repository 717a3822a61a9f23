"""The end of a layer: residual sums, the feed-forward's read through `slot`, and the gate of the next layer
(families 6 and 1).
"""

from __future__ import annotations

from jaxtyping import Array, Float, Int

from pallas_kernels.implementation import Implementation
from pallas_kernels.rows import RowPlan, read_through, relative_residual
from pallas_kernels.triton import feed_forward as triton


def add_through(
    hidden: Float[Array, "groups rows size"],
    attended: Float[Array, "groups rows size"],
    fed: Float[Array, "groups places size"],
    plan: RowPlan | None,
    parents: Int[Array, "groups rows"] | None,
    *,
    implementation: Implementation = "xla",
) -> tuple[Float[Array, "groups rows size"], Float[Array, "groups rows"] | None]:
    """Residual streams behind a layer, and each row's relative residual to its parent's.

    Args:
        hidden: residual streams before the layer.
        attended: output of attention, of every row.
        fed: output of the feed-forward in compact places.
        plan: whose place each row reads; None where places are rows.
        parents: each row's parent; without them there is no residual.
        implementation: "triton" takes one group.
    """
    if implementation == "triton":
        slot = None if plan is None else plan.slot[0]
        parents = None if parents is None else parents[0]
        summed, residual = triton.add_through(hidden[0], attended[0], fed[0], slot, parents)
        return summed[None], None if residual is None else residual[None]
    summed = hidden + attended
    summed = summed + (fed if plan is None else read_through(fed, plan.slot))
    return summed, None if parents is None else relative_residual(summed, parents)
