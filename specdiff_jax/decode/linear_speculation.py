"""Linear self-speculation: a diffusion target drafts a block bidirectionally and verifies it causally."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array

from specdiff_jax.block_spec import BlockSpec, block_spec
from specdiff_jax.config import ModelConfig
from specdiff_jax.decode.acceptance import SpeculationState, agreeing, append, batch_result, first_tokens, own_tokens
from specdiff_jax.decode.block_diffusion import fresh_block
from specdiff_jax.decode.loop import BatchResult, OnTokens, run_loop, while_undone
from specdiff_jax.decode.methods import LinearSpeculation
from specdiff_jax.decode.prefill import read_prompts
from specdiff_jax.decode.requests import Requests, power_of_two
from specdiff_jax.decode.sampling import without_mask
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model
from specdiff_jax.model.decoder import Decoder
from specdiff_jax.parallel import cache_sharding


def draft_and_verify(model: Decoder, state: SpeculationState, requests: Requests, spec: BlockSpec) -> SpeculationState:
    """Two forwards: one drafts a block, the other gives the target's own tokens, of which the agreeing run is kept."""
    lengths, size = state.cache.lengths, spec.block_size
    canvas = fresh_block(state.newest, spec)
    bidirectional = jnp.broadcast_to((lengths + size)[:, None], canvas.shape)
    drafted = model(canvas, state.cache, visible=bidirectional)
    assert drafted.cache is not None
    logits = without_mask(model.logits(drafted.hidden), spec.mask_token_id)
    drafts = jnp.argmax(logits, axis=-1).astype(jnp.int32).at[:, 0].set(state.newest)

    verified = model(drafts, drafted.cache, visible=lengths[:, None] + 1 + jnp.arange(size))
    assert verified.cache is not None
    own = own_tokens(model, verified.hidden, state.counts, requests)
    state = dataclasses.replace(state, forwards=state.forwards + 2 * ~state.done)
    longer = append(state, own, agreeing(drafts[:, 1:], own), requests)
    cache = verified.cache.with_lengths(lengths + longer.counts - state.counts)
    return dataclasses.replace(longer, cache=cache)


def run(
    model: Model, requests: Requests, method: LinearSpeculation, limit: int, on_tokens: OnTokens | None = None
) -> BatchResult:
    """Decode one batch, whose rows' limits are at most `limit`."""
    spec = speculation_spec(model.config)
    room = power_of_two(limit)
    capacity = requests.prompts.shape[1] + room + spec.block_size
    sharding = None if model.mesh is None else cache_sharding(model.mesh)

    def start(decoder: Decoder, asked: Requests) -> SpeculationState:
        cache, hidden = read_prompts(decoder, asked.prompts, asked.prompt_lengths, capacity=capacity, sharding=sharding)
        return first_tokens(decoder, cache, hidden, asked, room)

    def go_on(decoder: Decoder, state: SpeculationState, asked: Requests, steps: Array) -> SpeculationState:
        return while_undone(lambda current: draft_and_verify(decoder, current, asked, spec), state, steps)

    state, seconds = run_loop(model, (method, room), start, go_on, requests, on_tokens=on_tokens)
    return batch_result(state, seconds, forwards_per_verification=2)


def speculation_spec(config: ModelConfig) -> BlockSpec:
    """The target's rules.

    Raises:
        InputError: the target can't verify, since its commits are not causal.
    """
    spec = block_spec(config)
    if not spec.causal:
        raise InputError(f"linear speculation needs causal commits, which a {config.family} model does not have")
    return spec
