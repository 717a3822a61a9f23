"""Vanilla decoding that remembers the state and the distribution of every denoising step, for calibration."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.calibration import BlockTrace
from specdiff_jax.decode.block_diffusion import BlockState, begin, forward_block, settle, step_keys
from specdiff_jax.decode.loop import run_loop, while_undone
from specdiff_jax.decode.methods import Vanilla, denoising_spec
from specdiff_jax.decode.requests import Requests, power_of_two
from specdiff_jax.decode.verdict import judge
from specdiff_jax.loading import Model
from specdiff_jax.model.decoder import Decoder
from specdiff_jax.parallel import cache_sharding


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TraceState(BlockState):
    """Carry of the loop.

    Attributes:
        blocks: each row's block before its first, second, ... forward.
        ranked: the likeliest tokens of every slot in that forward.
        confidence: the largest probability of every slot.
    """

    blocks: Int[Array, "batch forwards slots"]
    ranked: Int[Array, "batch forwards slots ranks"]
    confidence: Float[Array, "batch forwards slots"]


def traced(model: Model, requests: Requests, method: Vanilla, limit: int, ranks: int) -> Iterator[BlockTrace]:
    """The traces of all blocks of a batch, whose rows' limits are at most `limit`.

    Args:
        model: the target.
        requests: the batch.
        method: how to decode.
        limit: most new tokens of a row.
        ranks: how many of the likeliest tokens of a slot are kept.
    """
    spec = denoising_spec(model.config, method)
    room, size = power_of_two(limit), spec.block_size
    most = room + size + room // size + 2  # every forward fills a slot, or commits a block
    sharding = None if model.mesh is None else cache_sharding(model.mesh)

    def start(decoder: Decoder, asked: Requests, _: Array) -> TraceState:
        capacity = asked.prompts.shape[1] + room + size
        state = begin(decoder, asked, spec, capacity=capacity, room=room, sharding=sharding)
        shape = (state.steps.size, most, size)
        return TraceState(
            **{field.name: getattr(state, field.name) for field in dataclasses.fields(state)},
            blocks=jnp.zeros(shape, jnp.int32),
            ranked=jnp.zeros((*shape, ranks), jnp.int32),
            confidence=jnp.zeros(shape, jnp.float32),
        )

    def go_on(decoder: Decoder, state: TraceState, asked: Requests, steps: Array, threshold: Array) -> TraceState:
        return while_undone(lambda current: _step(decoder, current, asked, threshold, spec, ranks), state, steps)

    key = ("trace", spec, room, ranks)
    state, _ = run_loop(model, key, start, go_on, requests, jnp.float32(method.threshold))
    for row in np.flatnonzero(np.asarray(requests.limits)):
        made = slice(int(state.steps[row]))
        blocks, ranked, confidence = (
            np.asarray(array[row])[made] for array in (state.blocks, state.ranked, state.confidence)
        )
        yield from _split(blocks, ranked, confidence, np.asarray(state.block[row]), spec)


def _step(
    model: Decoder, state: TraceState, requests: Requests, threshold: Float[Array, ""], spec: BlockSpec, ranks: int
) -> TraceState:
    cache, logits = forward_block(model, state, spec, jnp.zeros_like(state.done))
    verdict = judge(logits, spec, requests.sampling, step_keys(requests, state.steps + 1), ranks)
    batch = jnp.arange(state.done.size)
    at = jnp.where(state.done, state.blocks.shape[1], state.steps)
    seen = dataclasses.replace(
        state,
        blocks=state.blocks.at[batch, at].set(state.block, mode="drop"),
        ranked=state.ranked.at[batch, at].set(verdict.ranked, mode="drop"),
        confidence=state.confidence.at[batch, at].set(verdict.probabilities[..., 0], mode="drop"),
    )
    return settle(seen, cache, verdict.tokens, verdict.confidence, requests, threshold, spec, ~state.done)


def _split(
    blocks: Int[np.ndarray, "forwards slots"],
    ranked: Int[np.ndarray, "forwards slots ranks"],
    confidence: Float[np.ndarray, "forwards slots"],
    last: Int[np.ndarray, " slots"],
    spec: BlockSpec,
) -> Iterator[BlockTrace]:
    """One row's forwards as traces of its blocks; a forward of a block without masks is its commit.

    `last` is the state after the last forward, which a commit at the end makes that of a fresh block.
    """
    complete = ~np.any(blocks == spec.mask_token_id, axis=1)
    first = 0
    for end in [*np.flatnonzero(complete), len(blocks)]:
        states = blocks[first : end + 1] if end < len(blocks) else np.concatenate([blocks[first:], last[None]])
        if len(states) > 1:
            yield BlockTrace(states, confidence[first:end], ranked[first:end])
        first = end + 1
