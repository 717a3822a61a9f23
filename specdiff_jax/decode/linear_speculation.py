"""Linear self-speculation: a diffusion target drafts a block bidirectionally and verifies it causally.

Drafts are compared with the tokens that autoregressive decoding would draw with the same keys, so the output is the
same at any temperature.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdiff_jax.block_spec import BlockSpec, block_spec
from specdiff_jax.config import ModelConfig
from specdiff_jax.decode.block_diffusion import NEVER, fresh_block
from specdiff_jax.decode.loop import BatchResult, LoopState, OnTokens, run_loop, while_undone
from specdiff_jax.decode.methods import LinearSpeculation
from specdiff_jax.decode.prefill import read_prompts
from specdiff_jax.decode.requests import Requests, power_of_two
from specdiff_jax.decode.sampling import choose, without_mask
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model
from specdiff_jax.model.cache import KVCache
from specdiff_jax.model.decoder import Decoder
from specdiff_jax.parallel import cache_sharding


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearState(LoopState):
    """Carry of the loop.

    Attributes:
        cache: keys and values of all tokens but the newest of each row.
        newest: the token that the next block begins with.
        step_map: each new token's forwards when it became final.
        forwards: of each row; a draft and its verification are two.
        accepted: drafted tokens that were accepted.
    """

    cache: KVCache
    newest: Int[Array, " batch"]
    step_map: Int[Array, "batch room"]
    forwards: Int[Array, " batch"]
    accepted: Int[Array, " batch"]


def draft_and_verify(model: Decoder, state: LinearState, requests: Requests, spec: BlockSpec) -> LinearState:
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
    own = _own_tokens(without_mask(model.logits(verified.hidden), spec.mask_token_id), state.counts, requests)
    accepted = jnp.sum(jnp.cumprod(drafts[:, 1:] == own[:, :-1], axis=1), axis=1, dtype=jnp.int32)
    state = dataclasses.replace(state, forwards=state.forwards + 2 * ~state.done)
    longer = _append(state, own, accepted, requests)
    cache = verified.cache.with_lengths(lengths + longer.counts - state.counts)
    return dataclasses.replace(longer, cache=cache)


def _own_tokens(logits: Array, counts: Int[Array, " batch"], requests: Requests) -> Int[Array, "batch slots"]:
    """The target's token after each row, drawn with the key that autoregressive decoding would use for it."""
    batch, slots, vocab = logits.shape
    places = counts[:, None] + jnp.arange(slots)
    keys = jax.vmap(lambda key, row: jax.vmap(lambda place: jax.random.fold_in(key, place))(row))(requests.keys, places)
    return choose(logits.reshape(-1, vocab), requests.sampling, keys.reshape(-1)).reshape(batch, slots)


def _append(
    state: LinearState, own: Int[Array, "batch slots"], accepted: Int[Array, " batch"], requests: Requests
) -> LinearState:
    """Keep the accepted tokens and the one after them, up to a stop id or the limit."""
    slots, room = jnp.arange(own.shape[1]), state.generated.shape[1]
    stops = jnp.any(own[:, :, None] == requests.stop_ids, axis=2) & (slots <= accepted[:, None])
    to_stop = jnp.min(jnp.where(stops, slots + 1, NEVER), axis=1)
    new = jnp.minimum(jnp.minimum(accepted + 1, to_stop), requests.limits - state.counts)
    new = jnp.where(state.done, 0, new)
    places = jnp.where(slots < new[:, None], state.counts[:, None] + slots, room)
    batch = jnp.arange(new.size)[:, None]
    newest = jnp.take_along_axis(own, jnp.maximum(new - 1, 0)[:, None], axis=1)[:, 0]
    counts = state.counts + new
    return dataclasses.replace(
        state,
        newest=jnp.where(state.done, state.newest, newest),
        generated=state.generated.at[batch, places].set(own, mode="drop"),
        step_map=state.step_map.at[batch, places].set(state.forwards[:, None], mode="drop"),
        counts=counts,
        accepted=state.accepted + jnp.minimum(accepted, new),
        done=state.done | (to_stop <= new) | (counts >= requests.limits),
    )


def run(
    model: Model, requests: Requests, method: LinearSpeculation, limit: int, on_tokens: OnTokens | None = None
) -> BatchResult:
    """Decode one batch, whose rows' limits are at most `limit`."""
    spec = speculation_spec(model.config)
    room = power_of_two(limit)
    capacity = requests.prompts.shape[1] + room + spec.block_size
    sharding = None if model.mesh is None else cache_sharding(model.mesh)

    def start(decoder: Decoder, asked: Requests) -> LinearState:
        lengths = asked.prompt_lengths
        cache, hidden = read_prompts(decoder, asked.prompts, lengths, capacity=capacity, sharding=sharding)
        state = LinearState(
            cache=cache,
            newest=jnp.zeros_like(lengths),
            generated=jnp.zeros((lengths.size, room), jnp.int32),
            step_map=jnp.full((lengths.size, room), NEVER, jnp.int32),
            counts=jnp.zeros_like(lengths),
            forwards=jnp.zeros_like(lengths),
            accepted=jnp.zeros_like(lengths),
            done=asked.limits == 0,
        )
        own = _own_tokens(without_mask(decoder.logits(hidden[:, None]), spec.mask_token_id), state.counts, asked)
        return _append(state, own, jnp.zeros_like(lengths), asked)

    def go_on(decoder: Decoder, state: LinearState, asked: Requests, steps: Array) -> LinearState:
        return while_undone(lambda current: draft_and_verify(decoder, current, asked, spec), state, steps)

    state, seconds = run_loop(model, (method, room), start, go_on, requests, on_tokens=on_tokens)
    forwards = np.asarray(state.forwards)
    return BatchResult(
        tokens=np.asarray(state.generated),
        counts=np.asarray(state.counts),
        forwards=forwards,
        seconds=seconds,
        step_map=np.asarray(state.step_map),
        accepted_drafts=np.asarray(state.accepted),
        verifications=forwards // 2,
    )


def speculation_spec(config: ModelConfig) -> BlockSpec:
    """The target's rules.

    Raises:
        InputError: the target can't verify, since its commits are not causal.
    """
    spec = block_spec(config)
    if not spec.causal:
        raise InputError(f"linear speculation needs causal commits, which a {config.family} model does not have")
    return spec
