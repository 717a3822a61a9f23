"""Autoregressive decoding: a prefill, then one `while_loop` of single-token forwards."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int

from specdiff_jax.decode.loop import BatchResult, LoopState, OnTokens, run_loop, while_undone
from specdiff_jax.decode.methods import Autoregressive
from specdiff_jax.decode.prefill import read_prompts
from specdiff_jax.decode.requests import Requests, power_of_two
from specdiff_jax.decode.sampling import choose, without_mask
from specdiff_jax.loading import Model
from specdiff_jax.model.cache import KVCache
from specdiff_jax.model.decoder import Decoder
from specdiff_jax.parallel import cache_sharding


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState(LoopState):
    """Carry of the loop.

    Attributes:
        cache: keys and values of all tokens but the newest of each row.
        newest: the token that the next forward reads.
    """

    cache: KVCache
    newest: Int[Array, " batch"]


def _append(
    state: DecodeState, requests: Requests, model: Decoder, hidden: Float[Array, "batch hidden"]
) -> DecodeState:
    """Draw each live row's next token; its k-th always comes from its key folded with k, wherever the row stands."""
    logits = without_mask(model.logits(hidden), model.config.mask_token_id)
    keys = jax.vmap(jax.random.fold_in)(requests.keys, state.counts)
    tokens = jnp.where(state.done, state.newest, choose(logits, requests.sampling, keys))
    slots = jnp.where(state.done, state.generated.shape[1], state.counts)
    generated = state.generated.at[jnp.arange(slots.size), slots].set(tokens, mode="drop", unique_indices=True)
    counts = state.counts + ~state.done
    stopped = jnp.any(tokens[:, None] == requests.stop_ids, axis=1)
    done = state.done | stopped | (counts >= requests.limits)
    return dataclasses.replace(state, newest=tokens, generated=generated, counts=counts, done=done)


def prefill(
    model: Decoder, requests: Requests, *, capacity: int, room: int, cache_sharding: NamedSharding | None = None
) -> DecodeState:
    """Read the prompts and draw every row's first token.

    Args:
        model: the target.
        requests: the batch; `prompts` has a power-of-two width.
        capacity: tokens that a cache row holds; at least prompt width + `room`.
        room: width of the buffer of new tokens.
        cache_sharding: where the cache lives, for several devices.
    """
    cache, hidden = read_prompts(
        model, requests.prompts, requests.prompt_lengths, capacity=capacity, sharding=cache_sharding
    )
    batch = requests.prompt_lengths.shape[0]
    state = DecodeState(
        cache=cache,
        newest=jnp.zeros((batch,), jnp.int32),
        generated=jnp.zeros((batch, room), jnp.int32),
        counts=jnp.zeros((batch,), jnp.int32),
        done=requests.limits == 0,
    )
    return _append(state, requests, model, hidden)


def decode(model: Decoder, state: DecodeState, requests: Requests, steps: Int[Array, ""]) -> DecodeState:
    """Run at most `steps` forwards, or until every row is done."""

    def forward(current: DecodeState) -> DecodeState:
        output = model(current.newest[:, None], current.cache)
        assert output.cache is not None
        cache = output.cache.with_lengths(current.cache.lengths + ~current.done)
        return _append(dataclasses.replace(current, cache=cache), requests, model, output.hidden[:, 0])

    return while_undone(forward, state, steps)


def run(
    model: Model, requests: Requests, method: Autoregressive, limit: int, on_tokens: OnTokens | None = None
) -> BatchResult:
    """Decode one batch, whose rows' limits are at most `limit`."""
    room = power_of_two(limit)
    capacity = requests.prompts.shape[1] + room
    sharding = None if model.mesh is None else cache_sharding(model.mesh)

    def start(decoder: Decoder, asked: Requests) -> DecodeState:
        return prefill(decoder, asked, capacity=capacity, room=room, cache_sharding=sharding)

    state, seconds = run_loop(model, (method, room), start, decode, requests, on_tokens=on_tokens)
    counts = np.asarray(state.counts)
    return BatchResult(
        tokens=np.asarray(state.generated),
        counts=counts,
        forwards=np.maximum(counts - 1, 0),
        seconds=seconds,
        step_map=np.broadcast_to(np.arange(room), (counts.size, room)),
        accepted_drafts=np.zeros_like(counts),
    )
