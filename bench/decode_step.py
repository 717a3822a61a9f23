"""Steady-state time of one step of our autoregressive loop."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.measure import SHORT, Timing, seconds_of, time_step
from bench.target import cache_bytes, filled_cache, implementation, open_target, weight_bytes
from specdiff_jax.decode.autoregressive import DecodeState, decode
from specdiff_jax.decode.programs import compile_once
from specdiff_jax.decode.requests import Requests, make_requests, row_keys
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.loading import Model


def measure(
    name: str, random: bool, dtype: str, devices: int, batch: int, cache_tokens: int, steps: int, repeats: int
) -> dict[str, Any]:
    """Time a greedy step of `batch` rows that hold `cache_tokens` tokens each, in the loop that `generate` runs.

    Returns:
        what ran, seconds and spread of a step, and the bytes of weights and of cache that one device reads in it.
    """
    model = open_target(name, random=random, dtype=dtype, devices=devices)
    timing = time_decoding(model, batch, cache_tokens, steps=steps, repeats=repeats)
    return {
        "implementation": implementation(model),
        "seconds": timing.seconds,
        "spread": timing.spread,
        "weight_bytes": weight_bytes(model, batch),
        "cache_bytes": cache_bytes(model.config, batch, cache_tokens, model.dtype.itemsize, devices),
    }


def time_decoding(model: Model, batch: int, cache_tokens: int, *, steps: int, repeats: int) -> Timing:
    """Time of a step of a loaded model, whose rows no stop id ends."""
    model = dataclasses.replace(model, stop_ids=())
    room = SHORT + steps
    requests = endless_requests(model, batch, cache_tokens, room + 1)
    state = _start(requests, filled_cache(model, jnp.copy(requests.prompt_lengths), cache_tokens + room))
    program = compile_once(
        model,
        "bench step",
        decode,
        state,
        requests,
        jnp.int32(0),
        donate=(0,),
        out_shardings=jax.tree.map(lambda leaf: leaf.sharding, state),
    )

    def elapsed(count: int) -> float:
        nonlocal state
        begin = jax.block_until_ready(_start(requests, state.cache))
        seconds, state = seconds_of(lambda: program(model.params, begin, requests, jnp.int32(count)))
        assert np.all(np.asarray(state.counts) == count)
        return seconds

    return time_step(elapsed, steps=steps, repeats=repeats)


def endless_requests(model: Model, batch: int, cache_tokens: int, limit: int) -> Requests:
    """Random prompts, of which only the lengths and the first token matter, that no row ends before `limit` tokens."""
    prompts = np.random.default_rng(0).integers(model.config.vocab_size, size=(batch, cache_tokens))
    greedy = sampling(0.0, 1.0, 0, model.config.vocab_size)
    return make_requests(model, prompts.tolist(), batch, row_keys(0, batch), limit, greedy)


def _start(requests: Requests, cache: Any) -> DecodeState:
    """The loop's state after a prefill, nothing generated; in arrays of its own, since the loop overwrites them."""
    counts = jnp.zeros_like(requests.prompt_lengths)
    return DecodeState(
        cache=cache.with_lengths(jnp.copy(requests.prompt_lengths)),
        newest=jnp.copy(requests.prompts[:, 0]),
        generated=jnp.zeros_like(requests.prompts),
        counts=counts,
        done=counts > 0,
    )
