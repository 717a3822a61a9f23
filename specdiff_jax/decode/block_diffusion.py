"""Vanilla block diffusion: blocks are denoised one after the other, each against the cache of what stands before it.

Every iteration is one forward of a block's rows, for all batch rows together: a row with masks left makes a denoising
step, a row without commits its block and begins the next. So no row waits for another, and each does exactly what it
would do alone.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Bool, Float, Int, Key

from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.decode.denoise import accept, active_sub_block, propose
from specdiff_jax.decode.loop import BatchResult, LoopState, OnTokens, run_loop, while_undone
from specdiff_jax.decode.methods import Vanilla, denoising_spec
from specdiff_jax.decode.prefill import read_prompts
from specdiff_jax.decode.requests import Requests, power_of_two
from specdiff_jax.loading import Model
from specdiff_jax.model.cache import KVCache
from specdiff_jax.model.decoder import Decoder
from specdiff_jax.parallel import cache_sharding

NEVER = np.iinfo(np.int32).max
"""In a step map: not final yet."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BlockState(LoopState):
    """Carry of the loop.

    Attributes:
        cache: keys and values of the committed blocks; a row's block begins at its length.
        block: tokens of the block, the mask id where one is still to be found.
        cached_sub_block: the sub-block for which the whole block's keys and values were last computed; -1 for none.
        step_map: each new token's `steps` when it became final; `NEVER` until then.
        steps: forwards of each row.
    """

    cache: KVCache
    block: Int[Array, "batch slots"]
    cached_sub_block: Int[Array, " batch"]
    step_map: Int[Array, "batch room"]
    steps: Int[Array, " batch"]


State = TypeVar("State", bound=BlockState)
"""A carry with more in it stays one."""


def begin(
    model: Decoder,
    requests: Requests,
    spec: BlockSpec,
    *,
    capacity: int,
    room: int,
    sharding: NamedSharding | None = None,
) -> BlockState:
    """Read the prompts and lay out every row's first block.

    Where blocks are aligned, only whole blocks of the prompt are read, and its rest begins the first block. A first
    block that holds nothing of the prompt begins with a token from the prefill's last logits.

    Args:
        model: the target.
        requests: the batch; `prompts` has a power-of-two width.
        spec: the family's rules.
        capacity: tokens that a cache row holds; at least prompt width + `room` + a block.
        room: width of the buffer of new tokens.
        sharding: where the cache lives, for several devices.
    """
    lengths, size = requests.prompt_lengths, spec.block_size
    starts = lengths // size * size if spec.aligned else lengths
    cache, hidden = read_prompts(
        model,
        requests.prompts,
        starts,
        capacity=capacity,
        block=None if spec.causal else size,
        sharding=sharding,
    )
    seeds, _ = propose(
        model.logits(hidden[:, None]), spec, requests.sampling, step_keys(requests, jnp.zeros_like(lengths))
    )
    places = starts[:, None] + jnp.arange(size)
    in_prompt = places < lengths[:, None]
    rest = jnp.take_along_axis(requests.prompts, jnp.where(in_prompt, places, 0), axis=1)
    block = jnp.where(in_prompt, rest, fresh_block(seeds[:, 0], spec))
    state = BlockState(
        cache=cache,
        block=block,
        cached_sub_block=jnp.full_like(lengths, -1),
        generated=jnp.zeros((lengths.size, room), jnp.int32),
        step_map=jnp.full((lengths.size, room), NEVER, jnp.int32),
        counts=jnp.zeros_like(lengths),
        steps=jnp.zeros_like(lengths),
        done=requests.limits == 0,
    )
    return record(state, requests, spec)


def advance(
    model: Decoder,
    state: BlockState,
    requests: Requests,
    steps: Int[Array, ""],
    threshold: Float[Array, ""],
    *,
    spec: BlockSpec,
    sub_block_cache: bool,
) -> BlockState:
    """Run at most `steps` forwards, or until every row is done."""

    def step(current: BlockState) -> BlockState:
        if not sub_block_cache:
            return whole_block_step(model, current, requests, threshold, spec, waiting=jnp.zeros_like(current.done))
        ready = has_cached_sub_block(current, spec)
        return jax.lax.cond(
            jnp.all(ready | current.done),
            lambda: sub_block_step(model, current, requests, threshold, spec),
            lambda: whole_block_step(model, current, requests, threshold, spec, waiting=ready),
        )

    return while_undone(step, state, steps)


def whole_block_step(
    model: Decoder,
    state: BlockState,
    requests: Requests,
    threshold: Float[Array, ""],
    spec: BlockSpec,
    *,
    waiting: Bool[Array, " batch"],
) -> BlockState:
    """One forward of whole blocks: a denoising step, or where no mask is left the commit that begins the next block.

    Args:
        model: the target.
        state: the carry.
        requests: the batch.
        threshold: confidence at which a token is accepted.
        spec: the family's rules.
        waiting: rows that sit this forward out.
    """
    cache, logits = forward_block(model, state, spec, waiting)
    tokens, confidence = propose(logits, spec, requests.sampling, step_keys(requests, state.steps + 1))
    return settle(state, cache, tokens, confidence, requests, threshold, spec, ~state.done & ~waiting)


def forward_block(
    model: Decoder, state: BlockState, spec: BlockSpec, waiting: Bool[Array, " batch"]
) -> tuple[KVCache, Float[Array, "batch slots vocab"]]:
    """The forward of whole blocks: the cache with their keys and values past each length, and logits of every slot."""
    size, lengths = spec.block_size, state.cache.lengths
    # Rows that wait write past what anybody sees.
    cache = state.cache.with_lengths(jnp.where(waiting, state.cache.capacity - size, lengths))
    output = model.block(state.block, cache, seen_slots(state.block, spec))
    assert output.cache is not None
    return output.cache.with_lengths(lengths), model.logits(rows_of_slots(output.hidden, spec))


def seen_slots(block: Int[Array, "batch slots"], spec: BlockSpec) -> Int[Array, "batch slots"]:
    """How many slots of its block each row sees: all, or in a causal commit those up to its own."""
    everything = jnp.full(block.shape, block.shape[1], jnp.int32)
    if not spec.causal:
        return everything
    complete = ~jnp.any(block == spec.mask_token_id, axis=1, keepdims=True)
    return jnp.where(complete, jnp.arange(1, block.shape[1] + 1), everything)


def settle(
    state: State,
    cache: KVCache,
    tokens: Int[Array, "batch slots"],
    confidence: Float[Array, "batch slots"],
    requests: Requests,
    threshold: Float[Array, ""],
    spec: BlockSpec,
    moves: Bool[Array, " batch"],
) -> State:
    """What a forward of whole blocks leads to: blocks with more tokens, and where no mask was left, fresh ones.

    Args:
        state: the carry, of whatever class.
        cache: with the keys and values of the blocks past each length.
        tokens: proposed for every slot.
        confidence: how sure the model is of them.
        requests: the batch.
        threshold: confidence at which a token is accepted.
        spec: the family's rules.
        moves: rows that take part.
    """
    masked = state.block == spec.mask_token_id
    complete = ~jnp.any(masked, axis=1)
    # With the shift, the block's last row speaks for the next block's first slot and stands in the place of this one's.
    seeds = tokens[:, 0] if spec.token_shift else tokens[:, -1]
    block = jnp.where(
        complete[:, None], fresh_block(seeds, spec), accept(state.block, tokens, confidence, spec, threshold)
    )
    cached = jnp.where(complete, -1, active_sub_block(masked, spec))
    moved = dataclasses.replace(
        state,
        cache=cache.with_lengths(cache.lengths + spec.block_size * (complete & moves)),
        block=jnp.where(moves[:, None], block, state.block),
        cached_sub_block=jnp.where(moves, cached, state.cached_sub_block),
        steps=state.steps + moves,
    )
    return record(moved, requests, spec)


def sub_block_step(
    model: Decoder, state: BlockState, requests: Requests, threshold: Float[Array, ""], spec: BlockSpec
) -> BlockState:
    """A denoising step of the active sub-blocks alone; the block's other slots keep the keys and values they have.

    Those are of an earlier step, so this is an approximation (Fast-dLLM v2's DualCache).
    """
    lengths, width = state.cache.lengths, spec.sub_block
    first = active_sub_block(state.block == spec.mask_token_id, spec) * width
    slots = first[:, None] + jnp.arange(width)
    rows = jnp.take_along_axis(state.block, slots, axis=1)
    cache = state.cache.with_lengths(lengths + spec.block_size)
    output = model.block(rows, cache, jnp.full(rows.shape, width), starts=lengths + first)
    assert output.cache is not None
    proposed, sureness = propose(
        model.logits(rows_of_slots(output.hidden, spec)), spec, requests.sampling, step_keys(requests, state.steps + 1)
    )
    batch = jnp.arange(lengths.size)[:, None]
    tokens = state.block.at[batch, slots].set(proposed)
    confidence = jnp.zeros(state.block.shape, jnp.float32).at[batch, slots].set(sureness)
    moves = ~state.done
    block = accept(state.block, tokens, confidence, spec, threshold)
    moved = dataclasses.replace(
        state,
        cache=output.cache.with_lengths(lengths),
        block=jnp.where(moves[:, None], block, state.block),
        steps=state.steps + moves,
    )
    return record(moved, requests, spec)


def has_cached_sub_block(state: BlockState, spec: BlockSpec) -> Bool[Array, " batch"]:
    """Rows whose next step needs the rows of one sub-block alone.

    With the token shift, a sub-block's first slot is spoken for by the row before it, so it has to be found first.
    """
    masked = state.block == spec.mask_token_id
    active = active_sub_block(masked, spec)
    first_is_masked = jnp.take_along_axis(masked, active[:, None] * spec.sub_block, axis=1)[:, 0]
    return jnp.any(masked, axis=1) & (state.cached_sub_block == active) & ~(first_is_masked & spec.token_shift)


def rows_of_slots(hidden: Float[Array, "*batch slots hidden"], spec: BlockSpec) -> Float[Array, "*batch slots hidden"]:
    """The row that speaks for each slot: its own, or with the token shift the one before (the last one for slot 0)."""
    return jnp.roll(hidden, 1, axis=-2) if spec.token_shift else hidden


def fresh_block(seeds: Int[Array, " batch"], spec: BlockSpec) -> Int[Array, "batch slots"]:
    """Blocks that begin with a token and are masked otherwise."""
    return jnp.full((seeds.size, spec.block_size), spec.mask_token_id, jnp.int32).at[:, 0].set(seeds)


def step_keys(requests: Requests, steps: Int[Array, " batch"]) -> Key[Array, " batch"]:
    """The random key of each row's step; it depends on nothing else, so a row draws the same in any batch."""
    return jax.vmap(jax.random.fold_in)(requests.keys, steps)


def record(state: State, requests: Requests, spec: BlockSpec) -> State:
    """Copy what the blocks hold into the new tokens, and find the rows that are done by it.

    A row is done when a stop id has no mask before it, or when so many tokens as it may have are final.
    """
    size, room = spec.block_size, state.generated.shape[1]
    batch = jnp.arange(state.done.size)[:, None]
    places = places_of(state.cache.lengths, requests, size)
    masked = state.block == spec.mask_token_id
    written = jnp.where(masked | (places < 0) | state.done[:, None], room, places)
    generated = state.generated.at[batch, written].set(state.block, mode="drop")
    step_map = state.step_map.at[batch, written].min(state.steps[:, None], mode="drop")

    counts, done = ending(state.block, places, requests, spec)
    done |= state.done
    return dataclasses.replace(
        state,
        generated=generated,
        step_map=step_map,
        counts=jnp.where(state.done, state.counts, counts),
        done=done,
    )


def places_of(lengths: Int[Array, " batch"], requests: Requests, size: int) -> Int[Array, "batch slots"]:
    """Places of a block's slots among the new tokens; negative where they hold the end of the prompt."""
    return (lengths - requests.prompt_lengths)[:, None] + jnp.arange(size)


def ending(
    block: Int[Array, "batch slots"], places: Int[Array, "batch slots"], requests: Requests, spec: BlockSpec
) -> tuple[Int[Array, " batch"], Bool[Array, " batch"]]:
    """How many new tokens are final with such a block, and whether the row is done by it.

    Args:
        block: tokens and masks.
        places: of its slots among the new tokens.
        requests: the batch.
        spec: the family's rules.
    """
    before_mask = jnp.cumsum(block == spec.mask_token_id, axis=1) == 0
    final = jnp.maximum(jnp.max(jnp.where(before_mask, places + 1, 0), axis=1), 0)
    is_stop = jnp.any(block[:, :, None] == requests.stop_ids, axis=2) & before_mask & (places >= 0)
    to_stop = jnp.min(jnp.where(is_stop, places + 1, NEVER), axis=1)
    counts = jnp.minimum(jnp.minimum(final, to_stop), requests.limits)
    return counts, (to_stop != NEVER) | (final >= requests.limits)


def run(
    model: Model, requests: Requests, method: Vanilla, limit: int, on_tokens: OnTokens | None = None
) -> BatchResult:
    """Decode one batch, whose rows' limits are at most `limit`."""
    spec = denoising_spec(model.config, method)
    room = power_of_two(limit)
    # The last block may reach past the limit, and rows that wait need a place to write to.
    capacity = requests.prompts.shape[1] + room + (2 if method.sub_block_cache else 1) * spec.block_size
    sharding = None if model.mesh is None else cache_sharding(model.mesh)

    def start(decoder: Decoder, asked: Requests, _: Array) -> BlockState:
        return begin(decoder, asked, spec, capacity=capacity, room=room, sharding=sharding)

    def go_on(decoder: Decoder, state: BlockState, asked: Requests, steps: Array, threshold: Array) -> BlockState:
        return advance(decoder, state, asked, steps, threshold, spec=spec, sub_block_cache=method.sub_block_cache)

    key = ("block diffusion", spec, method.sub_block_cache, room)
    threshold = jnp.float32(method.threshold)
    state, seconds = run_loop(model, key, start, go_on, requests, threshold, on_tokens=on_tokens)
    counts = np.asarray(state.counts)
    return BatchResult(
        tokens=np.asarray(state.generated),
        counts=counts,
        forwards=np.asarray(state.steps),
        seconds=seconds,
        step_map=np.asarray(state.step_map),
        accepted_drafts=np.zeros_like(counts),
    )
