"""What of a verification may be folded, from its drafts (SpecFold, arXiv 2610.04875)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.tuned_data import LayerShape, tuned_here
from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.config import ModelConfig
from specdiff_jax.decode.drafting import Drafts, GraphTables
from specdiff_jax.folded_attention import FoldedAttention
from specdiff_jax.loading import Model
from specdiff_jax.model.branches import Folding, LayerReport


@dataclass(frozen=True)
class FoldSettings:
    """How rows are folded while a batch decodes.

    Attributes:
        delta: relative residual up to which a row is folded.
        capacities: numbers of rows that a layer may compute, ascending; the last one is that of all rows.
        attention: of folded rows.
    """

    delta: Float[Array, ""]
    capacities: tuple[int, ...]
    attention: FoldedAttention


def capacities_of(rows: int, buckets: int) -> tuple[int, ...]:
    """`rows` and equal parts of it, ascending."""
    return tuple(sorted({-(-rows * part // buckets) for part in range(1, buckets + 1)}))


def capacities_for(model: Model, batch: int, rows: int, buckets: int) -> tuple[int, ...]:
    """At most `buckets` numbers of rows of a batch row, ascending, the last one all of them: those that were tuned on
    this GPU for such layers, else equal parts.

    Tuning is for a single batch row in bfloat16 on a single GPU.

    Args:
        model: whose layers they are.
        batch: rows of the batch.
        rows: of a batch row.
        buckets: how many.
    """
    parts = capacities_of(rows, buckets)
    if batch > 1 or model.mesh is not None or model.dtype != jnp.bfloat16:
        return parts
    return tuned_here().capacities.get(layer_shape(model.config, rows, buckets), parts)


def layer_shape(config: ModelConfig, rows: int, buckets: int) -> LayerShape:
    """What tuned capacities are found by."""
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return LayerShape(config.hidden_size, qkv, config.intermediate_size, rows, buckets)


def folding_of(
    blocks: Int[Array, "batch branches slots"],
    drafts: Drafts,
    spec: BlockSpec,
    tables: GraphTables,
    settings: FoldSettings,
    outlook: Outlook | None = None,
) -> Folding:
    """Drafts fold into their parents, main and complete drafts into nothing; in the first layer no slot that holds
    another token than in the parent.

    A complete draft may stand for the commit, whose keys and values must be exact; invalid ones are read by nobody.

    Args:
        blocks: main, then the drafts.
        drafts: the same drafts.
        spec: the family's rules.
        tables: the draft graph.
        settings: how rows are folded.
        outlook: what earlier forwards tell of this one; None lets every layer choose its capacity.
    """
    parents = parent_branches(drafts.nodes, tables)
    of_parents = jax.vmap(lambda states, of: states[of])(blocks, parents)
    complete = ~jnp.any(blocks == spec.mask_token_id, axis=2)
    folding = Folding(
        parents=parents,
        forced=(blocks != of_parents,),
        whole=complete.at[:, 0].set(True),
        idle=jnp.pad(~drafts.valid, ((0, 0), (1, 0))),
        delta=settings.delta,
        capacities=settings.capacities,
        attention=settings.attention,
    )
    return folding if outlook is None else dataclasses.replace(folding, expected=expected_rows(folding, outlook))


class Outlook(NamedTuple):
    """What forwards tell of the one that comes next.

    Attributes:
        extra: of the rows that need not be computed, the share that the fullest layer did compute; a running mean.
        spread: how far a forward was from it; a running mean, too.
        forwards: that they are means of.
        fits: whether the last forward had enough compact places; if not, the next one has all.
    """

    extra: Float[Array, ""]
    spread: Float[Array, ""]
    forwards: Int[Array, ""]
    fits: Bool[Array, ""]


MARGIN, WEIGHT = 2.0, 1 / 16
"""How many spreads more than the mean are expected, and the least weight of a forward in both: of the pairs that were
tried on recorded verifications of the bundled models one with the least time, counting that a forward with too few
places is repeated (0 to 3 % of them).
"""


def no_outlook() -> Outlook:
    """Before the first forward: all rows are expected."""
    return Outlook(jnp.float32(1), jnp.float32(0), jnp.int32(0), jnp.bool_(True))


def next_outlook(outlook: Outlook, folding: Folding, needed: Int[Array, ""], fits: Bool[Array, ""]) -> Outlook:
    """The outlook after a forward whose fullest layer needed so many compact places.

    Args:
        outlook: before it.
        folding: of the forward.
        needed: of all batch rows together.
        fits: whether there were as many.
    """
    forced, read = _rows_known(folding)
    extra = (needed - forced) / jnp.maximum(read - forced, 1)
    weight = jnp.maximum(WEIGHT, 1 / (outlook.forwards + 1))
    away = jnp.where(outlook.forwards > 0, jnp.abs(extra - outlook.extra), 0)
    learned = Outlook(
        outlook.extra + weight * (extra - outlook.extra),
        outlook.spread + weight * (away - outlook.spread),
        outlook.forwards + 1,
        fits,
    )
    kept = outlook._replace(fits=fits)
    return Outlook(*(jnp.where(fits, new, old) for new, old in zip(learned, kept, strict=True)))


def expected_rows(folding: Folding, outlook: Outlook) -> Float[Array, ""]:
    """Rows of a batch row that the fullest layer is expected to compute, on the mean."""
    forced, read = _rows_known(folding)
    expected = forced + jnp.minimum(outlook.extra + MARGIN * outlook.spread, 1) * (read - forced)
    return jnp.where(outlook.fits, expected, read) / folding.parents.shape[0]


def _rows_known(folding: Folding) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Rows that the first layer must compute, and those that somebody reads."""
    read = jnp.broadcast_to(~folding.idle[..., None], folding.forced[0].shape)
    forced = read & (folding.forced[0] | folding.whole[..., None])
    return jnp.sum(forced, dtype=jnp.int32), jnp.sum(read, dtype=jnp.int32)


def parent_branches(nodes: Int[Array, "batch drafts"], tables: GraphTables) -> Int[Array, "batch branches"]:
    """The branch that each branch folds into: its fold parent where that is drafted before it, else another parent that
    is, else main; main's is itself.
    """
    drafts = jnp.arange(nodes.shape[1])
    is_parent = tables.parents[nodes[:, :, None], nodes[:, None, :]]
    is_fold_parent = tables.fold_parents[nodes][:, :, None] == nodes[:, None, :]
    before = drafts < drafts[:, None]
    rank = jnp.where(before, is_parent + 2 * is_fold_parent, 0)
    parents = jnp.where(jnp.any(rank > 0, axis=2), 1 + jnp.argmax(rank, axis=2), 0)
    return jnp.pad(parents, ((0, 0), (1, 0))).astype(jnp.int32)


def folded_rows(reports: Sequence[LayerReport], valid: Bool[Array, "batch drafts"]) -> Int[Array, " batch"]:
    """Rows of valid drafts that were folded, over all layers."""
    folded = sum(jnp.sum(~report.recomputed[:, 1:] & valid[..., None], axis=(1, 2)) for report in reports)
    return jnp.asarray(folded, jnp.int32)
