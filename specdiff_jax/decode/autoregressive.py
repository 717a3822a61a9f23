"""Autoregressive decoding: a prefill, then one `while_loop` of single-token forwards."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Bool, Float, Int

from specdiff_jax.decode.programs import compile_once, result_shapes
from specdiff_jax.decode.requests import Requests, power_of_two
from specdiff_jax.decode.sampling import choose
from specdiff_jax.loading import Model
from specdiff_jax.model.cache import KVCache, empty_cache
from specdiff_jax.model.decoder import Decoder
from specdiff_jax.parallel import cache_sharding

STREAM_STEPS = 4
"""Forwards between two looks at the new tokens while streaming: a look costs one round trip to the device."""

PREFILL_CHUNK = 512
"""Rows of one prefill forward; longer prompts go through in chunks, so that scores do not grow with prompt squared."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState:
    """Carry of the loop.

    Attributes:
        cache: keys and values of all tokens but the newest of each row.
        newest: the token that the next forward reads.
        generated: new tokens; valid below `counts`.
        counts: new tokens of each row.
        done: rows that met a stop id or their limit; they stay as they are.
    """

    cache: KVCache
    newest: Int[Array, " batch"]
    generated: Int[Array, "batch room"]
    counts: Int[Array, " batch"]
    done: Bool[Array, " batch"]


def _append(state: DecodeState, requests: Requests, logits: Float[Array, "batch vocab"]) -> DecodeState:
    """Draw each live row's next token; its k-th always comes from its key folded with k, wherever the row stands."""
    keys = jax.vmap(jax.random.fold_in)(requests.keys, state.counts)
    tokens = jnp.where(state.done, state.newest, choose(logits, requests.sampling, keys))
    slots = jnp.where(state.done, state.generated.shape[1], state.counts)
    generated = state.generated.at[jnp.arange(slots.size), slots].set(tokens, mode="drop", unique_indices=True)
    counts = state.counts + ~state.done
    stopped = jnp.any(tokens[:, None] == requests.stop_ids, axis=1)
    done = state.done | stopped | (counts >= requests.limits)
    return DecodeState(state.cache, tokens, generated, counts, done)


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
    batch, bucket = requests.prompts.shape
    dtype = model.embedding[...].dtype
    chunk = min(bucket, PREFILL_CHUNK)
    last = requests.prompt_lengths - 1

    def read_chunk(index: Array, carry: tuple[KVCache, Array]) -> tuple[KVCache, Array]:
        cache, hidden = carry
        start = index * chunk
        tokens = jax.lax.dynamic_slice_in_dim(requests.prompts, start, chunk, axis=1)
        output = model(tokens, cache.with_lengths(jnp.full((batch,), start, jnp.int32)))
        assert output.cache is not None
        at = jnp.clip(last - start, 0, chunk - 1)
        here = jnp.take_along_axis(output.hidden, at[:, None, None], axis=1)[:, 0]
        return output.cache, jnp.where((last // chunk == index)[:, None], here, hidden)

    carry = (
        empty_cache(model.config, batch, capacity, dtype, cache_sharding),
        jnp.zeros((batch, model.config.hidden_size), dtype),
    )
    if bucket == chunk:
        cache, hidden = read_chunk(jnp.int32(0), carry)
    else:
        cache, hidden = jax.lax.fori_loop(0, bucket // chunk, read_chunk, carry)
    state = DecodeState(
        cache=cache.with_lengths(requests.prompt_lengths),
        newest=jnp.zeros((batch,), jnp.int32),
        generated=jnp.zeros((batch, room), jnp.int32),
        counts=jnp.zeros((batch,), jnp.int32),
        done=requests.limits == 0,
    )
    return _append(state, requests, model.logits(hidden))


def decode(model: Decoder, state: DecodeState, requests: Requests, steps: Int[Array, ""]) -> DecodeState:
    """Run at most `steps` forwards, or until every row is done, in one `while_loop` on the device."""

    def unfinished(carry: tuple[Array, DecodeState]) -> Array:
        step, current = carry
        return (step < steps) & ~jnp.all(current.done)

    def forward(carry: tuple[Array, DecodeState]) -> tuple[Array, DecodeState]:
        step, current = carry
        output = model(current.newest[:, None], current.cache)
        assert output.cache is not None
        cache = output.cache.with_lengths(current.cache.lengths + ~current.done)
        current = dataclasses.replace(current, cache=cache)
        return step + 1, _append(current, requests, model.logits(output.hidden[:, 0]))

    return jax.lax.while_loop(unfinished, forward, (jnp.int32(0), state))[1]


def run(
    model: Model, requests: Requests, limit: int, on_tokens: Callable[[np.ndarray, np.ndarray], None] | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Decode one batch.

    Args:
        model: the target.
        requests: the batch.
        limit: the largest of the rows' limits.
        on_tokens: called with the tokens and counts so far every few forwards, for streaming.

    Returns:
        new tokens (batch, room), valid below the counts (batch,), and the seconds that it took without compilation.
    """
    room = power_of_two(limit)
    capacity = requests.prompts.shape[1] + room
    sharding = None if model.mesh is None else cache_sharding(model.mesh)
    key = (requests.prompts.shape, room, requests.stop_ids.shape, requests.sampling.kind)

    def start(decoder: Decoder, asked: Requests) -> DecodeState:
        return prefill(decoder, asked, capacity=capacity, room=room, cache_sharding=sharding)

    first = compile_once(model, ("prefill", *key), start, requests)
    state_shapes = result_shapes(first)
    steps = jnp.int32(limit if on_tokens is None else STREAM_STEPS)
    rest = compile_once(
        model,
        ("decode", *key),
        decode,
        state_shapes,
        requests,
        steps,
        donate=(0,),
        out_shardings=jax.tree.map(lambda leaf: leaf.sharding, state_shapes),
    )

    began = time.perf_counter()
    state = first(model.params, requests)
    while not np.all(state.done):
        if on_tokens is not None:
            on_tokens(np.asarray(state.generated), np.asarray(state.counts))
        state = rest(model.params, state, requests, steps)
    tokens, counts = np.asarray(state.generated), np.asarray(state.counts)
    seconds = time.perf_counter() - began
    if on_tokens is not None:
        on_tokens(tokens, counts)
    return tokens, counts, seconds
