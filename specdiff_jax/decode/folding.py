"""What of a verification may be folded, from its drafts (SpecFold, arXiv 2610.04875)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.decode.drafting import Drafts, GraphTables
from specdiff_jax.folded_attention import FoldedAttention
from specdiff_jax.model.branches import Folding, LayerReport

SLACK = 1.05
"""What a layer may need more than the fullest one did in the forward before."""


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


def folding_of(
    blocks: Int[Array, "batch branches slots"],
    drafts: Drafts,
    spec: BlockSpec,
    tables: GraphTables,
    settings: FoldSettings,
    share: Float[Array, ""] | None = None,
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
        share: of the rows that somebody reads, which the fullest layer is expected to compute; None lets every layer
            choose its capacity.
    """
    parents = parent_branches(drafts.nodes, tables)
    of_parents = jax.vmap(lambda states, of: states[of])(blocks, parents)
    complete = ~jnp.any(blocks == spec.mask_token_id, axis=2)
    return Folding(
        parents=parents,
        forced=(blocks != of_parents,),
        whole=complete.at[:, 0].set(True),
        idle=jnp.pad(~drafts.valid, ((0, 0), (1, 0))),
        delta=settings.delta,
        capacities=settings.capacities,
        attention=settings.attention,
        expected=None if share is None else SLACK * share * read_rows(drafts, blocks.shape[2]) / blocks.shape[0],
    )


def read_rows(drafts: Drafts, slots: int) -> Int[Array, ""]:
    """Rows of main and of the drafts that somebody reads, of the whole batch."""
    return slots * (drafts.valid.shape[0] + jnp.sum(drafts.valid, dtype=jnp.int32))


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
