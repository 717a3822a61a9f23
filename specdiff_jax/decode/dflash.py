"""DFlash (arXiv 2602.06036): a drafter fills a block in one forward, the target verifies it causally in another.

The block begins with the newest token; masks stand in its other slots. All that the drafter knows of the text before it
is the target's features of it, which every verification brings along for its rows. The drafter keeps keys and values of
them, so that a cycle reads in no more than the last verification's kept rows. The newest token has no feature yet: the
target has not read it.

A drafter that was trained on blocks of 16 can be used at 8, never the other way round. It goes on drafting 16 slots, as
it was trained, of which 8 are verified. (In the paper's ablation it drafts 8. A draft takes as long as its weights take
to be read, so that this saves a GPU nothing, and drafts get worse.)

Drafts are the most likely token of each slot at any temperature; see `acceptance` for why the output is that of
autoregressive decoding all the same.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int

from specdiff_jax.decode.acceptance import SpeculationState, agreeing, append, batch_result, first_tokens, own_tokens
from specdiff_jax.decode.loop import BatchResult, OnTokens, run_loop, while_undone
from specdiff_jax.decode.methods import DFlash
from specdiff_jax.decode.prefill import Tap, read_prompts_with
from specdiff_jax.decode.requests import Requests, power_of_two
from specdiff_jax.decode.sampling import without_mask
from specdiff_jax.drafter_config import check_pair
from specdiff_jax.drafter_loading import Drafter
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model
from specdiff_jax.model.cache import KVCache, empty_cache
from specdiff_jax.model.decoder import Decoder
from specdiff_jax.model.drafter import BlockDrafter, draft_logits, embed_block
from specdiff_jax.parallel import cache_sharding, drafter_cache_sharding

Features = tuple[Float[Array, "batch rows hidden"], ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DFlashState(SpeculationState):
    """Carry of the loop.

    Attributes:
        drafter_cache: the drafter's keys and values of the context, by absolute position, up to the last verification.
        context: what the drafter reads of the last verification's rows.
        fresh: how many of them, from the first on, are of kept tokens: all that the target's cache is ahead.
    """

    drafter_cache: KVCache
    context: Float[Array, "batch width hidden"]
    fresh: Int[Array, " batch"]


class Room(NamedTuple):
    """Sizes that are fixed while a batch decodes, and where its caches live.

    Attributes:
        new_tokens: width of the buffer of new tokens.
        width: tokens of a verification.
        capacity: tokens that a row of the target's cache holds.
        drafter_capacity: tokens that a row of the drafter's cache holds.
        sharding: of the target's cache, for several devices.
        drafter_sharding: of the drafter's cache.
    """

    new_tokens: int
    width: int
    capacity: int
    drafter_capacity: int
    sharding: NamedSharding | None
    drafter_sharding: NamedSharding | None


def room_for(model: Model, requests: Requests, method: DFlash, limit: int, *, serial: bool) -> Room:
    """What decoding a batch takes, whose rows' limits are at most `limit`; `serial` as `run` has it."""
    new_tokens = power_of_two(limit)
    longest = requests.prompts.shape[1] + new_tokens
    return Room(
        new_tokens,
        method.width,
        capacity=longest if serial else longest + method.width,
        drafter_capacity=longest + method.drafter.config.block_size,
        sharding=None if model.mesh is None else cache_sharding(model.mesh),
        drafter_sharding=None if model.mesh is None else drafter_cache_sharding(model.mesh),
    )


def begin(model: Decoder, drafter: BlockDrafter, requests: Requests, room: Room) -> DFlashState:
    """Read the prompts, for the target and the drafter, and draw every row's first token."""
    batch, dtype = requests.prompt_lengths.size, model.embedding[...].dtype
    backbone = drafter.config.backbone

    def read(cache: KVCache, tokens: Array, features: Features, start: Array) -> KVCache:
        context = drafter.context(features, embed_block(model, drafter.config, tokens))
        return drafter.remember(context, cache.with_lengths(jnp.full_like(cache.lengths, start)))

    empty = empty_cache(backbone, batch, room.drafter_capacity, dtype, room.drafter_sharding)
    cache, hidden, drafter_cache = read_prompts_with(
        model,
        requests.prompts,
        requests.prompt_lengths,
        Tap(drafter.config.target_layer_ids, empty, read),
        capacity=room.capacity,
        sharding=room.sharding,
    )
    return DFlashState(
        **vars(first_tokens(model, cache, hidden, requests, room.new_tokens)),
        drafter_cache=drafter_cache.with_lengths(requests.prompt_lengths),
        context=jnp.zeros((batch, room.width, backbone.hidden_size), dtype),
        fresh=jnp.zeros_like(requests.prompt_lengths),
    )


def cycle(
    model: Decoder, drafter: BlockDrafter, state: DFlashState, requests: Requests, *, serial: bool
) -> DFlashState:
    """Draft a block, verify it, and keep the agreeing run and the target's own token behind it."""
    drafts, drafter_cache = draft(model, drafter, state)
    block = jnp.concatenate([state.newest[:, None], drafts], axis=1)
    verify = _verify_one_by_one if serial else _verify
    own, features, cache = verify(model, block, state, requests, drafter.config.target_layer_ids)
    state = dataclasses.replace(state, forwards=state.forwards + ~state.done)
    longer = append(state, own, agreeing(drafts, own), requests)
    kept = longer.counts - state.counts
    return dataclasses.replace(
        longer,
        cache=cache.with_lengths(state.cache.lengths + kept),
        drafter_cache=drafter_cache,
        context=drafter.context(features, embed_block(model, drafter.config, block)),
        fresh=kept,
    )


def draft(model: Decoder, drafter: BlockDrafter, state: DFlashState) -> tuple[Int[Array, "batch drafts"], KVCache]:
    """The most likely tokens behind each row's newest, and the drafter's cache with all that the target has read."""
    config = drafter.config
    batch, width, _ = state.context.shape
    block = jnp.full((batch, config.block_size), config.mask_token_id, jnp.int32).at[:, 0].set(state.newest)
    drafted = drafter(embed_block(model, config, block), state.context, state.fresh, state.drafter_cache)
    logits = without_mask(draft_logits(model, config, drafted.hidden[:, 1:width]), model.config.mask_token_id)
    return jnp.argmax(logits, axis=-1).astype(jnp.int32), drafted.cache


def _verify(
    model: Decoder, block: Int[Array, "batch width"], state: DFlashState, requests: Requests, taps: tuple[int, ...]
) -> tuple[Int[Array, "batch width"], Features, KVCache]:
    """The target's own token after each row, the rows' features, and the cache with the rows in it, in one forward."""
    causal = jnp.broadcast_to(jnp.arange(1, block.shape[1] + 1, dtype=jnp.int32), block.shape)
    output = model.block(block, state.cache, causal, taps=taps)
    assert output.cache is not None
    return own_tokens(model, output.hidden, state.counts, requests), output.features, output.cache


def _verify_one_by_one(
    model: Decoder, block: Int[Array, "batch width"], state: DFlashState, requests: Requests, taps: tuple[int, ...]
) -> tuple[Int[Array, "batch width"], Features, KVCache]:
    """`_verify` by a forward for every row, with autoregressive decoding's shapes, and so with its roundings.

    These shapes leave no room behind the last token that may be kept. Rows that would stand there are of no use to
    anybody, and take the last place, which is of no use to any other.
    """
    lengths = state.cache.lengths

    def one(cache: KVCache, given: tuple[Array, Array]) -> tuple[KVCache, tuple[Array, tuple[Array, ...]]]:
        index, tokens = given
        places = jnp.minimum(lengths + index, cache.capacity - 1)
        output = model(tokens[:, None], cache.with_lengths(places), taps=taps)
        assert output.cache is not None
        own = own_tokens(model, output.hidden, state.counts + index, requests)[:, 0]
        return output.cache, (own, tuple(feature[:, 0] for feature in output.features))

    indices = jnp.arange(block.shape[1], dtype=jnp.int32)
    cache, (own, features) = jax.lax.scan(one, state.cache, (indices, block.T))
    return own.T, tuple(feature.swapaxes(0, 1) for feature in features), cache


def check_drafter(model: Model, drafter: Drafter) -> None:
    """Whether a drafter was made for the target, and loaded for it.

    Raises:
        InputError: saying what doesn't fit.
    """
    check_pair(drafter.config, model.config, drafter.name, model.name)
    ours, its = (jax.tree.leaves(params)[0] for params in (drafter.params, model.params))
    if ours.dtype != its.dtype or ours.sharding.device_set != its.sharding.device_set:
        raise InputError(
            f"drafter {drafter.name} was loaded for a model of another dtype or on other devices: load it for this one"
        )


def run(
    model: Model,
    requests: Requests,
    method: DFlash,
    limit: int,
    on_tokens: OnTokens | None = None,
    *,
    serial: bool = False,
) -> BatchResult:
    """Decode one batch, whose rows' limits are at most `limit`; `serial` keeps to autoregressive decoding's shapes."""
    drafter = method.drafter
    room = room_for(model, requests, method, limit, serial=serial)

    def start(decoder: Decoder, asked: Requests, params: nnx.State) -> DFlashState:
        return begin(decoder, nnx.merge(drafter.graphdef, params), asked, room)

    def go_on(decoder: Decoder, state: DFlashState, asked: Requests, steps: Array, params: nnx.State) -> DFlashState:
        module = nnx.merge(drafter.graphdef, params)
        return while_undone(lambda current: cycle(decoder, module, current, asked, serial=serial), state, steps)

    key = ("dflash", drafter.graphdef, room.width, serial, room.new_tokens)
    # XLA's own choice of products: at 16 rows of Qwen3-8B cuBLAS alone takes 5 % longer, unlike with several drafts.
    state, seconds = run_loop(model, key, start, go_on, requests, drafter.params, on_tokens=on_tokens)
    return batch_result(state, seconds, forwards_per_verification=1)
