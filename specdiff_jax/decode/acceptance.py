"""Accepting drafts, for every method that drafts tokens and lets the target verify them causally.

A verification runs the newest token and the drafts behind it. Behind each of these rows the target draws its own next
token, with the random key that autoregressive decoding would use for that place. Drafts are kept as long as they equal
the target's own tokens, and behind the last one kept comes the target's own. So the target drew every token after
exactly those that stand before it, and the output is, in exact arithmetic, that of autoregressive decoding with the
same seed, at any temperature.

This is speculative sampling (arXiv 2211.17192) of drafts that are proposed for certain. A draft y is accepted where the
target draws y, with probability p(y); else the token is the target's draw, which is known not to be y: one from p
without y, renormalised, the residual.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdiff_jax.decode.block_diffusion import NEVER
from specdiff_jax.decode.loop import BatchResult, LoopState
from specdiff_jax.decode.requests import Requests
from specdiff_jax.decode.sampling import choose, without_mask
from specdiff_jax.model.cache import KVCache
from specdiff_jax.model.decoder import Decoder


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SpeculationState(LoopState):
    """Carry of the loop.

    Attributes:
        cache: keys and values of all tokens but the newest of each row.
        newest: the token that the next verification begins with.
        step_map: each new token's forwards when it became final.
        forwards: target forwards of each row after the prefill.
        accepted: drafted tokens that were accepted.
    """

    cache: KVCache
    newest: Int[Array, " batch"]
    step_map: Int[Array, "batch room"]
    forwards: Int[Array, " batch"]
    accepted: Int[Array, " batch"]


State = TypeVar("State", bound=SpeculationState)


def first_tokens(
    model: Decoder, cache: KVCache, hidden: Float[Array, "batch hidden"], requests: Requests, room: int
) -> SpeculationState:
    """The carry after the prefill, which gave every row's first token.

    Args:
        model: the target.
        cache: with the prompts in it.
        hidden: of each prompt's last token.
        requests: the batch.
        room: width of the buffer of new tokens.
    """
    zeros = jnp.zeros_like(requests.prompt_lengths)
    state = SpeculationState(
        cache=cache,
        newest=zeros,
        generated=jnp.zeros((zeros.size, room), jnp.int32),
        step_map=jnp.full((zeros.size, room), NEVER, jnp.int32),
        counts=zeros,
        forwards=zeros,
        accepted=zeros,
        done=requests.limits == 0,
    )
    return append(state, own_tokens(model, hidden[:, None], zeros, requests), zeros, requests)


def own_tokens(
    model: Decoder, hidden: Float[Array, "batch slots hidden"], counts: Int[Array, " batch"], requests: Requests
) -> Int[Array, "batch slots"]:
    """The target's token after each row, drawn with the key that autoregressive decoding would use for it.

    Args:
        model: the target.
        hidden: rows after the final norm.
        counts: new tokens that stand before the first row's.
        requests: the batch.
    """
    batch, slots, width = hidden.shape
    logits = without_mask(model.logits(hidden.reshape(-1, width)), model.config.mask_token_id)
    places = counts[:, None] + jnp.arange(slots)
    keys = jax.vmap(lambda key, row: jax.vmap(lambda place: jax.random.fold_in(key, place))(row))(requests.keys, places)
    return choose(logits, requests.sampling, keys.reshape(-1)).reshape(batch, slots)


def agreeing(drafts: Int[Array, "batch drafts"], own: Int[Array, "batch slots"]) -> Int[Array, " batch"]:
    """How many drafts, from the first one on, are the target's own; it drew `own[:, j]` in the place of draft j."""
    return jnp.sum(jnp.cumprod(drafts == own[:, :-1], axis=1), axis=1, dtype=jnp.int32)


def append(state: State, own: Int[Array, "batch slots"], accepted: Int[Array, " batch"], requests: Requests) -> State:
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


def batch_result(state: SpeculationState, seconds: float, forwards_per_verification: int) -> BatchResult:
    """What a batch gave in so many seconds."""
    forwards = np.asarray(state.forwards)
    return BatchResult(
        tokens=np.asarray(state.generated),
        counts=np.asarray(state.counts),
        forwards=forwards,
        seconds=seconds,
        step_map=np.asarray(state.step_map),
        accepted_drafts=np.asarray(state.accepted),
        verifications=forwards // forwards_per_verification,
    )
