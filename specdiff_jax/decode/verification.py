"""The forward of main and its drafts, and the distributions that it gives.

Branches run side by side in one forward, or in exact mode one after the other in the shape that vanilla decoding has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.decode.block_diffusion import rows_of_slots, seen_slots, step_keys
from specdiff_jax.decode.drafting import Drafts, GraphTables
from specdiff_jax.decode.folding import FoldSettings, Outlook, folded_rows, folding_of, next_outlook, no_outlook
from specdiff_jax.decode.requests import Requests
from specdiff_jax.decode.verdict import Verdict, judge, judge_greedily
from specdiff_jax.model.branches import Folding
from specdiff_jax.model.cache import KVCache
from specdiff_jax.model.decoder import Decoder


@dataclass(frozen=True)
class Plan:
    """What is fixed while a batch decodes.

    Attributes:
        spec: the family's rules.
        tables: the draft graph.
        budget: drafts of an iteration.
        adopt: whether the forward of a complete draft stands for the commit; with `sub_block_cache` none is complete.
        serial: whether branches run one after the other, each in the shape that vanilla decoding has.
        fold: how rows are folded; None computes every row.
        sub_block_cache: whether only the rows of a sub-block are computed where that is possible.
    """

    spec: BlockSpec
    tables: GraphTables
    budget: int
    adopt: bool
    serial: bool
    fold: FoldSettings | None = None
    sub_block_cache: bool = False


class Evaluated(NamedTuple):
    """What the forwards of main (branch 0) and of the drafts gave.

    Attributes:
        verdicts: distributions of every branch, [batch, branches, slots, ...].
        keys: of every branch's rows, one array a layer.
        values: of every branch's rows, one array a layer.
        folded_rows: rows of drafts that were folded, over all layers.
        outlook: on the next forward. Where it says that this one had too few compact places, nothing else here is of
            any use.
    """

    verdicts: Verdict
    keys: tuple[Float[Array, "batch kv_heads branches slots head_dim"], ...]
    values: tuple[Float[Array, "batch kv_heads branches slots head_dim"], ...]
    folded_rows: Int[Array, " batch"]
    outlook: Outlook


class Branches(NamedTuple):
    """Main and its drafts, as run in one forward.

    Attributes:
        tokens: main, then the drafts: slots of the block, or those of a sub-block.
        drafts: that they are; `valid` says which anybody reads.
        steps: of vanilla decoding, that each branch stands for; the draws of a step depend on it.
        starts: first cached place that they replace.
    """

    tokens: Int[Array, "batch branches slots"]
    drafts: Drafts
    steps: Int[Array, "batch branches"]
    starts: Int[Array, " batch"]


def evaluate(
    model: Decoder, cache: KVCache, branches: Branches, requests: Requests, plan: Plan, outlook: Outlook
) -> Evaluated:
    """Run main and the drafts; main alone where no row has a draft.

    Args:
        model: the target.
        cache: tokens that all branches see, but for those that they take the place of.
        branches: what is run.
        requests: the batch.
        plan: how.
        outlook: on this forward.
    """
    any_draft = jnp.any(branches.drafts.valid)

    def run(count: int, folding: Folding | None) -> Evaluated:
        asked = branches._replace(tokens=branches.tokens[:, :count], steps=branches.steps[:, :count])
        return (
            _one_by_one(model, cache, asked, requests, plan)
            if plan.serial
            else _side_by_side(model, cache, asked, requests, plan, folding, outlook)
        )

    def with_drafts() -> Evaluated:
        if plan.fold is None:
            return run(1 + plan.budget, None)
        known = outlook if model.branch_kernels(branches.tokens.shape[2], plan.fold.attention) else None
        folding = folding_of(branches.tokens, branches.drafts, plan.spec, plan.tables, plan.fold, known)
        return run(1 + plan.budget, folding)

    def alone() -> Evaluated:
        main = run(1, None)

        def widened(array: Array, axis: int) -> Array:
            return jnp.repeat(array, 1 + plan.budget, axis=axis)

        verdicts = Verdict(*(widened(array, 1) for array in main.verdicts))
        keys, values = jax.tree.map(lambda array: widened(array, 2), (main.keys, main.values))
        return Evaluated(verdicts, keys, values, main.folded_rows, outlook._replace(fits=jnp.bool_(True)))

    return jax.lax.cond(any_draft, with_drafts, alone)


def _side_by_side(
    model: Decoder,
    cache: KVCache,
    branches: Branches,
    requests: Requests,
    plan: Plan,
    folding: Folding | None,
    outlook: Outlook,
) -> Evaluated:
    """All branches in one forward."""
    spec = plan.spec
    visible = jax.vmap(lambda block: seen_slots(block, spec), in_axes=1, out_axes=1)(branches.tokens)
    starts = branches.starts if plan.sub_block_cache else None
    output = model.branches(branches.tokens, cache, visible, folding, starts=starts)
    rows = rows_of_slots(output.hidden, spec)
    if requests.sampling.kind == "greedy":
        verdicts = judge_greedily(model, rows, spec, plan.tables.ranks)
    else:
        # Noise for the whole vocabulary, a branch at a time.
        verdicts = jax.lax.map(
            lambda given: judge(
                model.logits(given[0]), spec, requests.sampling, step_keys(requests, given[1]), plan.tables.ranks
            ),
            (jnp.swapaxes(rows, 0, 1), jnp.swapaxes(branches.steps, 0, 1)),
        )
        verdicts = jax.tree.map(lambda array: jnp.swapaxes(array, 0, 1), verdicts)
    folded = jnp.zeros_like(cache.lengths)
    if folding is not None:
        folded = folded_rows(output.reports, ~folding.idle[:, 1:])
        if folding.expected is not None:
            outlook = next_outlook(outlook, folding, output.needed, output.fits)
    return Evaluated(verdicts, output.keys, output.values, folded, outlook)


def _one_by_one(model: Decoder, cache: KVCache, branches: Branches, requests: Requests, plan: Plan) -> Evaluated:
    """A forward for every branch, with the same shapes, and so the same roundings, as in vanilla decoding."""
    spec, starts = plan.spec, branches.starts
    width = branches.tokens.shape[2]

    def one(given: tuple[Array, Array]) -> tuple[Verdict, tuple[Array, ...], tuple[Array, ...]]:
        tokens, step = given
        output = model.block(tokens, cache, seen_slots(tokens, spec), starts=starts)
        assert output.cache is not None
        verdict = judge(
            model.logits(rows_of_slots(output.hidden, spec)),
            spec,
            requests.sampling,
            step_keys(requests, step),
            plan.tables.ranks,
        )

        def written(buffer: Array) -> Array:
            size = (buffer.shape[1], width, buffer.shape[3])
            return jax.vmap(lambda row, start: jax.lax.dynamic_slice(row, (0, start, 0), size))(buffer, starts)

        return verdict, tuple(map(written, output.cache.keys)), tuple(map(written, output.cache.values))

    verdicts, keys, values = jax.lax.map(one, (jnp.swapaxes(branches.tokens, 0, 1), jnp.swapaxes(branches.steps, 0, 1)))
    verdicts = jax.tree.map(lambda array: jnp.swapaxes(array, 0, 1), verdicts)
    keys, values = jax.tree.map(lambda array: jnp.moveaxis(array, 0, 2), (keys, values))
    return Evaluated(verdicts, keys, values, jnp.zeros_like(starts), no_outlook())
