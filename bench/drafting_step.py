"""Times of a draft, of its verification and of a whole cycle, beside a step of autoregressive decoding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bench.decode_step import endless_requests, time_decoding
from bench.drafting import drafter_of
from bench.measure import SHORT, Timing, seconds_of, time_step
from bench.target import filled_cache, head_bytes, open_target, weight_bytes
from specdiff_jax.decode import dflash
from specdiff_jax.decode.acceptance import own_tokens
from specdiff_jax.decode.dflash import DFlashState, Features
from specdiff_jax.decode.programs import branch_implementation, compile_once
from specdiff_jax.decode.requests import Requests
from specdiff_jax.drafter_loading import Drafter, random_drafter
from specdiff_jax.loading import Model
from specdiff_jax.model import Decoder
from specdiff_jax.model.drafter import BlockDrafter, embed_block

Carry = tuple[DFlashState, Features, jax.Array]
"""The loop's state, the features of a verification's rows, and the block."""

Step = Callable[[Decoder, BlockDrafter, Requests, Carry], Carry]


def drafting(model: Decoder, drafter: BlockDrafter, requests: Requests, carry: Carry) -> Carry:
    """A draft: features of `width` rows are fused and read in, then a block is filled.

    The next one begins with the last draft of this one. Features are the same in each, so the compiler has to take
    them to come out of the draft: else it would fuse them once for all.
    """
    state, features, block = carry
    context = drafter.context(features, embed_block(model, drafter.config, block))
    drafts, cache = dflash.draft(model, drafter, dataclasses.replace(state, context=context))
    features, drafts = jax.lax.optimization_barrier((features, drafts))
    # The same rows are written again: a text that grows would need room for all of them.
    kept = cache.with_lengths(state.drafter_cache.lengths)
    newest = drafts[:, -1]
    state = dataclasses.replace(state, newest=newest, drafter_cache=kept)
    return state, features, jnp.concatenate([newest[:, None], drafts], axis=1)


def verifying(model: Decoder, drafter: BlockDrafter, requests: Requests, carry: Carry) -> Carry:
    """A verification of `width` rows, with features and the target's own token behind each. The next one reads them."""
    state, _, block = carry
    causal = jnp.arange(1, block.shape[1] + 1, dtype=jnp.int32)[None]
    output = model.block(block, state.cache, causal, taps=drafter.config.target_layer_ids)
    assert output.cache is not None
    own = own_tokens(model, output.hidden, state.counts, requests)
    return dataclasses.replace(state, cache=output.cache), output.features, own


def cycling(model: Decoder, drafter: BlockDrafter, requests: Requests, carry: Carry) -> Carry:
    """What the decoding loop does with both."""
    state, features, block = carry
    return dflash.cycle(model, drafter, state, requests, serial=False), features, block


def measure(name: str, dtype: str, width: int, cache_tokens: int, steps: int, repeats: int) -> dict[str, Any]:
    """Time drafting for one row of a geometry with random weights.

    Args:
        name: of the target's geometry.
        dtype: of weights and activations.
        width: tokens of a verification.
        cache_tokens: in both caches.
        steps: that are timed in one go.
        repeats: how often.

    Returns:
        what ran; by part (`bench.drafting.PARTS`) the seconds; the largest spread; and the bytes of weights that a
        step, a draft and a verification read.
    """
    model = open_target(name, random=True, dtype=dtype, devices=1)
    drafter = random_drafter(drafter_of(name), model)
    timings = {"autoregressive": time_decoding(model, 1, cache_tokens, steps=steps, repeats=repeats)}
    asked = {"draft": drafting, "verify": verifying, "cycle": cycling}
    for part, step in asked.items():
        timings[part] = _time(model, drafter, step, width, cache_tokens, steps=steps, repeats=repeats)
    own = sum(leaf.nbytes for leaf in jax.tree.leaves(drafter.params))
    return {
        "implementation": branch_implementation(model),
        "seconds": {part: timing.seconds for part, timing in timings.items()},
        "spread": max(timing.spread for timing in timings.values()),
        "weight_bytes": {
            "autoregressive": weight_bytes(model, 1),
            "draft": own + head_bytes(model),
            "verify": weight_bytes(model, width),
        },
    }


def _time(
    model: Model, drafter: Drafter, step: Step, width: int, cache_tokens: int, *, steps: int, repeats: int
) -> Timing:
    """Time of one of so many steps in one program, each after the one before."""
    model = dataclasses.replace(model, stop_ids=())
    requests = endless_requests(model, 1, cache_tokens, SHORT + steps + 1)

    def run(decoder: Decoder, carry: Carry, asked: Requests, count: jax.Array, params: nnx.State) -> Carry:
        module = nnx.merge(drafter.graphdef, params)
        return jax.lax.fori_loop(0, count, lambda _, current: step(decoder, module, asked, current), carry)

    carry = _begin(model, drafter, requests, width)
    program = compile_once(
        model,
        ("bench drafting", step.__name__),
        run,
        carry,
        requests,
        jnp.int32(0),
        drafter.params,
    )

    def elapsed(count: int) -> float:
        return seconds_of(lambda: program(model.params, carry, requests, jnp.int32(count), drafter.params))[0]

    return time_step(elapsed, steps=steps, repeats=repeats)


def _begin(model: Model, drafter: Drafter, requests: Requests, width: int) -> Carry:
    """The middle of a text: caches, of which the drafter's lacks a whole verification, whose features are random."""
    lengths, room, backbone = requests.prompt_lengths, int(requests.limits[0]), drafter.config.backbone
    capacity, nothing = requests.prompts.shape[1] + room + width, jnp.zeros_like(lengths)
    keys = jax.random.split(jax.random.key(2), len(drafter.config.target_layer_ids))
    rows = (1, width, backbone.hidden_size)
    state = DFlashState(
        cache=filled_cache(model, lengths, capacity),
        newest=requests.prompts[:, 0],
        generated=jnp.zeros((1, room), jnp.int32),
        step_map=jnp.zeros((1, room), jnp.int32),
        counts=nothing,
        forwards=nothing,
        accepted=nothing,
        done=nothing > 0,
        drafter_cache=filled_cache(dataclasses.replace(model, config=backbone), lengths - width, capacity),
        context=jax.random.normal(jax.random.key(3), rows, model.dtype),
        fresh=nothing + width,
    )
    return state, tuple(jax.random.normal(key, rows, model.dtype) for key in keys), requests.prompts[:, :width]
