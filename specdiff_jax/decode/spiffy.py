"""Lossless multi-branch verification (Spiffy, arXiv 2509.18085).

Every iteration is one forward of each row's block, its main state, and of several drafts of what the block may become.
After the step of the main state, a draft that equals the new state in every slot has already given the distribution of
the next step, so that this step takes no forward; and so on from draft to draft. Only states decide, never a draft's
own logits, so the tokens are those of `block_diffusion`, unless drafts are folded. Drafts are made from the latest
distribution, the one that gave the current state.
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
    forward_block,
    fresh_block,
    has_cached_sub_block,
    places_of,
    record,
    settle,
    step_keys,
)
from specdiff_jax.decode.denoise import accept, active_sub_block
from specdiff_jax.decode.drafting import Drafts, GraphTables, draft, graph_tables, no_drafts
from specdiff_jax.decode.folding import FoldSettings, Outlook, capacities_for, no_outlook
from specdiff_jax.decode.loop import BatchResult, OnTokens, run_loop, while_undone
from specdiff_jax.decode.methods import SpecFold, Spiffy, denoising_spec
from specdiff_jax.decode.programs import verification_options
from specdiff_jax.decode.requests import Requests, power_of_two
from specdiff_jax.decode.verdict import Verdict, judge
from specdiff_jax.decode.verification import Branches, Evaluated, Plan, evaluate
from specdiff_jax.loading import Model
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
        outlook: on the next verification.
    """

    drafts: Drafts
    vanilla_steps: Int[Array, " batch"]
    accepted: Int[Array, " batch"]
    hits: Int[Array, "batch nodes"]
    fold_parent_hits: Int[Array, "batch nodes"]
    child_rows: Int[Array, " batch"]
    folded_rows: Int[Array, " batch"]
    outlook: Outlook


def iterate(
    model: Decoder, state: SpiffyState, requests: Requests, threshold: Float[Array, ""], plan: Plan
) -> SpiffyState:
    """One forward, and all steps that it pays for."""
    if not plan.sub_block_cache:
        return verify(model, state, requests, threshold, plan)
    ready = has_cached_sub_block(state, plan.spec)
    return jax.lax.cond(
        jnp.all(ready | state.done),
        lambda: verify(model, state, requests, threshold, plan),
        lambda: whole_block_forward(model, state, requests, threshold, plan, waiting=ready),
    )


def verify(
    model: Decoder, state: SpiffyState, requests: Requests, threshold: Float[Array, ""], plan: Plan
) -> SpiffyState:
    """A forward of main and its drafts, and all steps that it pays for.

    With `sub_block_cache` the rows are those of the active sub-block, and the cache is left alone: nobody reads its
    entries of that sub-block, and the next sub-block begins with a whole-block forward.

    Where a layer needed more compact places than were expected, nothing moves, and the next forward has all of them.
    """
    spec, lengths = plan.spec, state.cache.lengths
    cached, branches = branches_of(state, plan)
    evaluated = evaluate(model, cached, branches, requests, plan, state.outlook)
    runs = ~state.done
    moves = runs & evaluated.outlook.fits
    verdicts = Verdict(*(_in_block(part, branches.starts - lengths, spec.block_size) for part in evaluated.verdicts))
    passed = follow(state, verdicts, requests, threshold, plan)
    committed = passed.committed & moves
    cache = state.cache if plan.sub_block_cache else _with_branch(state.cache, evaluated, passed.branch)
    child_rows = jnp.sum(branches.drafts.valid, axis=1) * branches.tokens.shape[2] * model.config.num_layers
    moved = dataclasses.replace(
        state,
        cache=cache,
        block=jnp.where(moves[:, None], passed.block, state.block),
        steps=state.steps + runs,
        vanilla_steps=state.vanilla_steps + jnp.where(moves, 1 + passed.accepted, 0),
        accepted=state.accepted + jnp.where(moves, passed.accepted, 0),
        hits=state.hits + jnp.where(moves[:, None], passed.hits, 0),
        fold_parent_hits=state.fold_parent_hits + jnp.where(moves[:, None], passed.fold_parent_hits, 0),
        child_rows=state.child_rows + jnp.where(moves, child_rows, 0),
        folded_rows=state.folded_rows + jnp.where(moves, evaluated.folded_rows, 0),
        outlook=evaluated.outlook,
    )
    recorded = record(moved, requests, spec)
    begun = dataclasses.replace(
        recorded,
        cache=cache.with_lengths(lengths + spec.block_size * committed),
        block=jnp.where(committed[:, None], fresh_block(passed.seeds, spec), recorded.block),
    )
    begun = record(begun, requests, spec)
    made = next_drafts(begun, passed.block, passed.verdict, plan, moves & ~committed)
    drafts = Drafts(*(jnp.where(evaluated.outlook.fits, new, old) for new, old in zip(made, state.drafts, strict=True)))
    return dataclasses.replace(begun, drafts=drafts)


def branches_of(state: SpiffyState, plan: Plan) -> tuple[KVCache, Branches]:
    """What a verification runs, and the cache with all that it sees of it."""
    spec, lengths = plan.spec, state.cache.lengths
    blocks = jnp.concatenate([state.block[:, None], state.drafts.blocks], axis=1)
    drafts = state.drafts._replace(valid=state.drafts.valid & ~state.done[:, None])
    levels = plan.tables.levels[drafts.nodes]
    steps = state.vanilla_steps[:, None] + 1 + jnp.pad(levels, ((0, 0), (1, 0)))
    if not plan.sub_block_cache:
        return state.cache, Branches(blocks, drafts, steps, lengths)
    first = active_sub_block(state.block == spec.mask_token_id, spec) * spec.sub_block
    slots = first[:, None] + jnp.arange(spec.sub_block)
    tokens = jnp.take_along_axis(blocks, slots[:, None], axis=2)
    return state.cache.with_lengths(lengths + spec.block_size), Branches(tokens, drafts, steps, lengths + first)


def whole_block_forward(
    model: Decoder,
    state: SpiffyState,
    requests: Requests,
    threshold: Float[Array, ""],
    plan: Plan,
    waiting: Bool[Array, " batch"],
) -> SpiffyState:
    """A forward of whole blocks without drafts, which caches them; `waiting` rows sit it out."""
    spec = plan.spec
    moves = ~state.done & ~waiting
    cache, logits = forward_block(model, state, spec, waiting)
    verdict = judge(logits, spec, requests.sampling, step_keys(requests, state.vanilla_steps + 1), plan.tables.ranks)
    settled = settle(state, cache, verdict.tokens, verdict.confidence, requests, threshold, spec, moves)
    made = next_drafts(settled, settled.block, verdict, plan, moves)
    drafts = Drafts(*(_rows_from(moves, new, old) for new, old in zip(made, state.drafts, strict=True)))
    return dataclasses.replace(settled, vanilla_steps=state.vanilla_steps + moves, drafts=drafts)


def next_drafts(
    state: SpiffyState,
    block: Int[Array, "batch slots"],
    verdict: Verdict,
    plan: Plan,
    wanted: Bool[Array, " batch"],
) -> Drafts:
    """Drafts of what a block may become; with `sub_block_cache` none that leaves or fills the sub-block that is cached.

    Args:
        state: the carry that they are for.
        block: what they are drafts of.
        verdict: the distribution that gave it.
        plan: how.
        wanted: rows that need drafts.
    """
    spec, slots = plan.spec, None
    if plan.sub_block_cache:
        slots = jnp.arange(spec.block_size) // spec.sub_block == state.cached_sub_block[:, None]
    drafts = draft(block, verdict, spec, plan.tables, plan.budget, plan.adopt, slots)
    return drafts._replace(valid=drafts.valid & wanted[:, None])


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

        block, seeds = _rows_from(going, next_block, block), _rows_from(going, next_seeds, seeds)
        verdict = Verdict(*(_rows_from(going, new, old) for new, old in zip(next_verdict, verdict, strict=True)))
        hits = hits.at[batch, node].add(going)
        fold_parent_hits = fold_parent_hits.at[batch, node].add(going & (tables.fold_parents[node] == reached))
        accepted, reached = accepted + going, _rows_from(going, node, reached)
        committed |= going & complete
        branch = _rows_from(going, place + 1, branch) if plan.adopt else branch
        going &= ~complete
    branch = jnp.where(committed, branch, 0)
    return Passed(block, verdict, accepted, hits, fold_parent_hits, committed, branch, seeds)


def _rows_from(which: Bool[Array, " batch"], new: Array, old: Array) -> Array:
    """`new` in some batch rows, `old` in the others."""
    return jnp.where(which.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _seeds(verdict: Verdict, spec: BlockSpec) -> Int[Array, " batch"]:
    """First token of the next block, if this was a commit.

    With the shift, the block's last row speaks for it and stands in the place of this block's first slot.
    """
    return verdict.tokens[:, 0] if spec.token_shift else verdict.tokens[:, -1]


def _in_block(part: Array, first: Int[Array, " batch"], size: int) -> Array:
    """What belongs to the slots (axis 2) from `first` on, in the places of a block's `size` slots; 0 in the others."""
    width = part.shape[2]
    if width == size:  # the whole block
        return part
    block = jnp.zeros((*part.shape[:2], size, *part.shape[3:]), part.dtype)
    slots = first[:, None] + jnp.arange(width)
    return jax.vmap(lambda row, places, values: row.at[:, places].set(values))(block, slots, part)


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
        outlook=no_outlook(),
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
    # With the sub-block cache, rows that wait need a place to write to.
    capacity = requests.prompts.shape[1] + room + (2 if method.sub_block_cache else 1) * spec.block_size
    sharding = None if model.mesh is None else cache_sharding(model.mesh)

    def start(decoder: Decoder, asked: Requests, *_: Any) -> SpiffyState:
        state = begin(decoder, asked, spec, capacity=capacity, room=room, sharding=sharding)
        return without_drafts(state, budget, nodes)

    width = spec.sub_block if method.sub_block_cache else spec.block_size
    batch, rows = requests.prompts.shape[0], (1 + budget) * width
    capacities = capacities_for(model, batch, rows, folds.buckets) if folds else ()

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
        plan = Plan(spec, tables, budget, adopt, serial, fold, method.sub_block_cache)
        return while_undone(lambda current: iterate(decoder, current, asked, threshold, plan), state, steps)

    sizes = tables.positions.shape, tables.depth, tables.ranks
    attention = folds.attention if folds else None
    key = ("spiffy", sizes, spec, budget, adopt, serial, room, capacities, attention, method.sub_block_cache)
    settings = jnp.float32(method.threshold), tables, jnp.float32(folds.delta if folds else 0)
    options = verification_options(model)
    state, seconds = run_loop(model, key, start, go_on, requests, *settings, on_tokens=on_tokens, options=options)
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
