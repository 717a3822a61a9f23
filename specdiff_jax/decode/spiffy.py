"""Lossless multi-branch verification (Spiffy, arXiv 2509.18085).

Every iteration is one forward of each row's block, its main state, and of several drafts of what the block may become.
After the step of the main state, a draft that equals the new state in every slot has already given the distribution of
the next step, which so takes no forward; and so on from draft to draft. Only states decide, never a draft's own logits,
so the tokens are those of `block_diffusion`. Drafts are made from the latest distribution, the one that gave the
current state.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.decode.block_diffusion import (
    BlockState,
    begin,
    ending,
    fresh_block,
    places_of,
    record,
    rows_of_slots,
    step_keys,
)
from specdiff_jax.decode.denoise import accept
from specdiff_jax.decode.drafting import Drafts, GraphTables, draft, graph_tables, no_drafts
from specdiff_jax.decode.folding import FoldSettings, capacities_of, folded_rows, folding_of
from specdiff_jax.decode.loop import BatchResult, OnTokens, run_loop, while_undone
from specdiff_jax.decode.methods import SpecFold, Spiffy, denoising_spec
from specdiff_jax.decode.requests import Requests, power_of_two
from specdiff_jax.decode.verdict import Verdict, judge, judge_greedily
from specdiff_jax.loading import Model
from specdiff_jax.model.branches import Folding
from specdiff_jax.model.cache import KVCache, write
from specdiff_jax.model.decoder import Decoder
from specdiff_jax.parallel import cache_sharding


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SpiffyState(BlockState):
    """Carry of the loop.

    Attributes:
        drafts: of each row's block.
        vanilla_steps: forwards that vanilla decoding would have made so far; the draws of a step depend on it.
        accepted: drafts whose distribution was used.
        hits: how often each node of the graph was accepted.
        fold_parent_hits: how often of that right after its fold parent.
        child_rows: rows of drafts that were verified, over all layers.
        folded_rows: those of them that were folded.
    """

    drafts: Drafts
    vanilla_steps: Int[Array, " batch"]
    accepted: Int[Array, " batch"]
    hits: Int[Array, "batch nodes"]
    fold_parent_hits: Int[Array, "batch nodes"]
    child_rows: Int[Array, " batch"]
    folded_rows: Int[Array, " batch"]


class Evaluated(NamedTuple):
    """What the forwards of main (branch 0) and of the drafts gave.

    Attributes:
        verdicts: distributions of every branch, [batch, branches, slots, ...].
        keys: of every branch's rows, one array a layer.
        values: of every branch's rows, one array a layer.
        folded_rows: rows of drafts that were folded, over all layers.
    """

    verdicts: Verdict
    keys: tuple[Float[Array, "batch kv_heads branches slots head_dim"], ...]
    values: tuple[Float[Array, "batch kv_heads branches slots head_dim"], ...]
    folded_rows: Int[Array, " batch"]


@dataclass(frozen=True)
class Plan:
    """What is fixed while a batch decodes.

    Attributes:
        spec: the family's rules.
        tables: the draft graph.
        budget: drafts of an iteration.
        adopt: whether the forward of a complete draft stands for the commit.
        serial: whether branches run one after the other, each in the shape that vanilla decoding has.
        fold: how rows are folded; None computes every row.
    """

    spec: BlockSpec
    tables: GraphTables
    budget: int
    adopt: bool
    serial: bool
    fold: FoldSettings | None = None


def iterate(
    model: Decoder, state: SpiffyState, requests: Requests, threshold: Float[Array, ""], plan: Plan
) -> SpiffyState:
    """One forward, and all steps that it pays for."""
    spec = plan.spec
    evaluated = evaluate(model, state, requests, plan)
    passed = follow(state, evaluated.verdicts, requests, threshold, plan)
    moves = ~state.done
    committed = passed.committed & moves
    cache = _with_branch(state.cache, evaluated, passed.branch)
    child_rows = jnp.sum(state.drafts.valid, axis=1) * spec.block_size * model.config.num_layers
    moved = dataclasses.replace(
        state,
        cache=cache,
        block=jnp.where(moves[:, None], passed.block, state.block),
        steps=state.steps + moves,
        vanilla_steps=state.vanilla_steps + jnp.where(moves, 1 + passed.accepted, 0),
        accepted=state.accepted + jnp.where(moves, passed.accepted, 0),
        hits=state.hits + jnp.where(moves[:, None], passed.hits, 0),
        fold_parent_hits=state.fold_parent_hits + jnp.where(moves[:, None], passed.fold_parent_hits, 0),
        child_rows=state.child_rows + jnp.where(moves, child_rows, 0),
        folded_rows=state.folded_rows + jnp.where(moves, evaluated.folded_rows, 0),
    )
    recorded = record(moved, requests, spec)
    begun = dataclasses.replace(
        recorded,
        cache=cache.with_lengths(cache.lengths + spec.block_size * committed),
        block=jnp.where(committed[:, None], fresh_block(passed.seeds, spec), recorded.block),
    )
    drafts = draft(passed.block, passed.verdict, spec, plan.tables, plan.budget, plan.adopt)
    valid = drafts.valid & (moves & ~committed)[:, None]
    return dataclasses.replace(record(begun, requests, spec), drafts=drafts._replace(valid=valid))


class Passed(NamedTuple):
    """How far the steps of an iteration went.

    Attributes:
        block: the last state of the block.
        verdict: the distribution that gave it.
        accepted: drafts on the way.
        hits: which nodes of the graph they stand for.
        fold_parent_hits: which of them came right after their fold parents.
        committed: whether the block was committed.
        branch: the branch that did that.
        seeds: first token of the next block, where it was.
    """

    block: Int[Array, "batch slots"]
    verdict: Verdict
    accepted: Int[Array, " batch"]
    hits: Int[Array, "batch nodes"]
    fold_parent_hits: Int[Array, "batch nodes"]
    committed: Bool[Array, " batch"]
    branch: Int[Array, " batch"]
    seeds: Int[Array, " batch"]


def follow(
    state: SpiffyState, verdicts: Verdict, requests: Requests, threshold: Float[Array, ""], plan: Plan
) -> Passed:
    """Step from the main state, and on from every draft that equals the state reached, as deep as the graph is."""
    spec, tables, drafts = plan.spec, plan.tables, state.drafts
    batch = jnp.arange(state.done.size)
    places = places_of(state.cache.lengths, requests, spec.block_size)

    def step(block: Array, branch: Array) -> tuple[Array, Verdict, Array]:
        verdict = Verdict(*(array[batch, branch] for array in verdicts))
        return accept(block, verdict.tokens, verdict.confidence, spec, threshold), verdict, _seeds(verdict, spec)

    committed = ~jnp.any(state.block == spec.mask_token_id, axis=1)
    branch = jnp.zeros_like(state.steps)
    block, verdict, seeds = step(state.block, branch)
    accepted = jnp.zeros_like(state.steps)
    hits = fold_parent_hits = jnp.zeros_like(state.hits)
    levels = tables.levels[drafts.nodes]
    reached = jnp.full_like(state.steps, -1)  # the node accepted last
    going = ~committed
    for level in range(1, tables.depth + 1):
        _, ended = ending(block, places, requests, spec)
        below = tables.parents[drafts.nodes, reached[:, None]] if level > 1 else True
        fits = drafts.valid & (levels == level) & below & jnp.all(drafts.blocks == block[:, None], axis=2)
        going &= ~ended & jnp.any(fits, axis=1)
        place = jnp.argmax(fits, axis=1)
        node = drafts.nodes[batch, place]
        complete = ~jnp.any(block == spec.mask_token_id, axis=1)
        next_block, next_verdict, next_seeds = step(block, place + 1)

        def passing(new: Array, old: Array, going: Array = going) -> Array:
            return jnp.where(going.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        block, seeds = passing(next_block, block), passing(next_seeds, seeds)
        verdict = Verdict(*map(passing, next_verdict, verdict))
        hits = hits.at[batch, node].add(going)
        fold_parent_hits = fold_parent_hits.at[batch, node].add(going & (tables.fold_parents[node] == reached))
        accepted, reached = accepted + going, passing(node, reached)
        committed |= going & complete
        branch = passing(place + 1, branch) if plan.adopt else branch
        going &= ~complete
    branch = jnp.where(committed, branch, 0)
    return Passed(block, verdict, accepted, hits, fold_parent_hits, committed, branch, seeds)


def evaluate(model: Decoder, state: SpiffyState, requests: Requests, plan: Plan) -> Evaluated:
    """Run main and the drafts; main alone where no row has a draft."""
    blocks = jnp.concatenate([state.block[:, None], state.drafts.blocks], axis=1)
    levels = plan.tables.levels[state.drafts.nodes]
    steps = state.vanilla_steps[:, None] + 1 + jnp.pad(levels, ((0, 0), (1, 0)))

    def run(branches: int, folding: Folding | None) -> Evaluated:
        given = model, state.cache, blocks[:, :branches], steps[:, :branches], requests, plan
        return _one_by_one(*given) if plan.serial else _side_by_side(*given, folding)

    def with_drafts() -> Evaluated:
        if plan.fold is None:
            return run(1 + plan.budget, None)
        drafts = state.drafts._replace(valid=state.drafts.valid & ~state.done[:, None])
        return run(1 + plan.budget, folding_of(blocks, drafts, plan.spec, plan.tables, plan.fold))

    def alone() -> Evaluated:
        main = run(1, None)

        def widened(array: Array, axis: int) -> Array:
            return jnp.repeat(array, 1 + plan.budget, axis=axis)

        verdicts = Verdict(*(widened(array, 1) for array in main.verdicts))
        keys, values = jax.tree.map(lambda array: widened(array, 2), (main.keys, main.values))
        return Evaluated(verdicts, keys, values, main.folded_rows)

    return jax.lax.cond(jnp.any(state.drafts.valid & ~state.done[:, None]), with_drafts, alone)


def _side_by_side(
    model: Decoder,
    cache: KVCache,
    blocks: Array,
    steps: Array,
    requests: Requests,
    plan: Plan,
    folding: Folding | None,
) -> Evaluated:
    """All branches in one forward."""
    spec = plan.spec
    visible = jax.vmap(lambda block: seen_slots(block, spec), in_axes=1, out_axes=1)(blocks)
    output = model.branches(blocks, cache, visible, folding)
    rows = rows_of_slots(output.hidden, spec)
    if requests.sampling.kind == "greedy":
        verdicts = judge_greedily(model, rows, spec, plan.tables.ranks)
    else:
        # Noise for the whole vocabulary, a branch at a time.
        verdicts = jax.lax.map(
            lambda given: judge(
                model.logits(given[0]), spec, requests.sampling, step_keys(requests, given[1]), plan.tables.ranks
            ),
            (jnp.swapaxes(rows, 0, 1), jnp.swapaxes(steps, 0, 1)),
        )
        verdicts = jax.tree.map(lambda array: jnp.swapaxes(array, 0, 1), verdicts)
    folded = jnp.zeros_like(cache.lengths)
    if folding is not None:
        folded = folded_rows(output.reports, ~folding.idle[:, 1:])
    return Evaluated(verdicts, output.keys, output.values, folded)


def _one_by_one(
    model: Decoder, cache: KVCache, blocks: Array, steps: Array, requests: Requests, plan: Plan
) -> Evaluated:
    """A forward for every branch, with the same shapes, and so the same roundings, as in vanilla decoding."""
    spec, lengths = plan.spec, cache.lengths

    def one(given: tuple[Array, Array]) -> tuple[Verdict, tuple[Array, ...], tuple[Array, ...]]:
        block, step = given
        output = model(block, cache, visible=lengths[:, None] + seen_slots(block, spec))
        assert output.cache is not None
        verdict = judge(
            model.logits(rows_of_slots(output.hidden, spec)),
            spec,
            requests.sampling,
            step_keys(requests, step),
            plan.tables.ranks,
        )

        def written(buffer: Array) -> Array:
            size = (buffer.shape[1], spec.block_size, buffer.shape[3])
            return jax.vmap(lambda row, start: jax.lax.dynamic_slice(row, (0, start, 0), size))(buffer, lengths)

        return verdict, tuple(map(written, output.cache.keys)), tuple(map(written, output.cache.values))

    verdicts, keys, values = jax.lax.map(one, (jnp.swapaxes(blocks, 0, 1), jnp.swapaxes(steps, 0, 1)))
    verdicts = jax.tree.map(lambda array: jnp.swapaxes(array, 0, 1), verdicts)
    keys, values = jax.tree.map(lambda array: jnp.moveaxis(array, 0, 2), (keys, values))
    return Evaluated(verdicts, keys, values, jnp.zeros_like(lengths))


def seen_slots(block: Int[Array, "batch slots"], spec: BlockSpec) -> Int[Array, "batch slots"]:
    """How many slots of the block each of its rows sees: all, or in a causal commit those up to its own."""
    everything = jnp.full(block.shape, spec.block_size, jnp.int32)
    if not spec.causal:
        return everything
    complete = ~jnp.any(block == spec.mask_token_id, axis=1, keepdims=True)
    return jnp.where(complete, jnp.arange(1, spec.block_size + 1), everything)


def _seeds(verdict: Verdict, spec: BlockSpec) -> Int[Array, " batch"]:
    """First token of the next block, if this was a commit.

    With the shift, the block's last row speaks for it and stands in the place of this block's first slot.
    """
    return verdict.tokens[:, 0] if spec.token_shift else verdict.tokens[:, -1]


def _with_branch(cache: KVCache, evaluated: Evaluated, branch: Int[Array, " batch"]) -> KVCache:
    """The cache with one branch's keys and values past each length."""
    batch = jnp.arange(branch.size)

    def put(buffer: Array, rows: Array) -> Array:
        return write(buffer, rows[batch, :, branch], cache.lengths)

    return KVCache(
        tuple(map(put, cache.keys, evaluated.keys)), tuple(map(put, cache.values, evaluated.values)), cache.lengths
    )


def without_drafts(state: BlockState, budget: int, nodes: int) -> SpiffyState:
    """The carry after the prefill.

    Args:
        state: where vanilla decoding begins.
        budget: drafts of an iteration.
        nodes: of the draft graph.
    """
    zeros = jnp.zeros_like(state.steps)
    none_hit = jnp.zeros((zeros.size, nodes), jnp.int32)
    return SpiffyState(
        **{field.name: getattr(state, field.name) for field in dataclasses.fields(state)},
        drafts=no_drafts(state.block, budget),
        vanilla_steps=zeros,
        accepted=zeros,
        hits=none_hit,
        fold_parent_hits=none_hit,
        child_rows=zeros,
        folded_rows=zeros,
    )


def run(
    model: Model,
    requests: Requests,
    method: Spiffy,
    limit: int,
    on_tokens: OnTokens | None = None,
    *,
    serial: bool = False,
) -> BatchResult:
    """Decode one batch, whose rows' limits are at most `limit`; `serial` keeps to vanilla decoding's shapes."""
    spec = denoising_spec(model.config, method.baseline)
    nodes = method.graph.budget
    budget, adopt = method.budget or nodes, method.adopt
    folds = method if isinstance(method, SpecFold) else None
    tables = graph_tables(method.graph)
    room = power_of_two(limit)
    capacity = requests.prompts.shape[1] + room + spec.block_size
    sharding = None if model.mesh is None else cache_sharding(model.mesh)

    def start(decoder: Decoder, asked: Requests, *_: Any) -> SpiffyState:
        state = begin(decoder, asked, spec, capacity=capacity, room=room, sharding=sharding)
        return without_drafts(state, budget, nodes)

    capacities = capacities_of((1 + budget) * spec.block_size, folds.buckets) if folds else ()

    def go_on(
        decoder: Decoder,
        state: SpiffyState,
        asked: Requests,
        steps: Array,
        threshold: Array,
        tables: GraphTables,
        delta: Array,
    ) -> SpiffyState:
        fold = FoldSettings(delta, capacities, folds.attention) if folds else None
        plan = Plan(spec, tables, budget, adopt, serial, fold)
        return while_undone(lambda current: iterate(decoder, current, asked, threshold, plan), state, steps)

    sizes = tables.positions.shape, tables.depth, tables.ranks
    key = ("spiffy", sizes, spec, budget, adopt, serial, room, capacities, folds.attention if folds else None)
    settings = jnp.float32(method.threshold), tables, jnp.float32(folds.delta if folds else 0)
    state, seconds = run_loop(model, key, start, go_on, requests, *settings, on_tokens=on_tokens)
    return BatchResult(
        tokens=np.asarray(state.generated),
        counts=np.asarray(state.counts),
        forwards=np.asarray(state.steps),
        seconds=seconds,
        step_map=np.asarray(state.step_map),
        accepted_drafts=np.asarray(state.accepted),
        hits=np.asarray(state.hits),
        fold_parent_hits=np.asarray(state.fold_parent_hits),
        child_rows=np.asarray(state.child_rows) if folds else None,
        folded_rows=np.asarray(state.folded_rows) if folds else None,
    )
