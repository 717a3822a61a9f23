"""What folding has to work with: how far drafts are from their parents, in every layer and slot.

Decoding goes as dense verification goes. Every verification is run again with folding, from the same states, which
tells what would be folded and what the paper's correction would leave of the softmax states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdiff_jax.decode.block_diffusion import begin, seen_slots
from specdiff_jax.decode.drafting import GraphTables, graph_tables
from specdiff_jax.decode.folding import FoldSettings, folding_of
from specdiff_jax.decode.generate import check_method, check_no_mask
from specdiff_jax.decode.methods import SpecFold, denoising_spec
from specdiff_jax.decode.programs import compile_once
from specdiff_jax.decode.requests import (
    Prompt,
    Requests,
    check_lengths,
    encode_prompt,
    make_requests,
    power_of_two,
    row_keys,
)
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.decode.spiffy import SpiffyState, iterate, without_drafts
from specdiff_jax.decode.verification import Plan
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model
from specdiff_jax.model.branches import Folding, LayerReport
from specdiff_jax.model.decoder import Decoder
from specdiff_jax.parallel import cache_sharding


@dataclass(frozen=True)
class Verification:
    """One verification of one prompt's block. Drafts are those that were possible, in the order of the branches.

    Attributes:
        prompt: index of the prompt.
        before: tokens before the block.
        levels: denoising steps that each draft is ahead of main.
        masked: slots that main has a mask in.
        fresh: slots in which a draft differs from its parent.
        residual: |h - h_parent| / |h_parent| before each layer, of dense verification.
        recomputed: rows that folded verification computes.
        surviving: share of the softmax sum that the correction leaves of a row's source, the smallest of its heads.
    """

    prompt: int
    before: int
    levels: Int[np.ndarray, " drafts"]
    masked: Bool[np.ndarray, " slots"]
    fresh: Bool[np.ndarray, "drafts slots"]
    residual: Float[np.ndarray, "layers drafts slots"]
    recomputed: Bool[np.ndarray, "layers drafts slots"]
    surviving: Float[np.ndarray, "layers drafts slots"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Seen:
    """A `Verification` of every batch row, with the drafts that were not possible."""

    lengths: Int[Array, " batch"]
    valid: Bool[Array, "batch drafts"]
    levels: Int[Array, "batch drafts"]
    masked: Bool[Array, "batch slots"]
    fresh: Bool[Array, "batch branches slots"]
    residual: Float[Array, "layers batch branches slots"]
    recomputed: Bool[Array, "layers batch branches slots"]
    surviving: Float[Array, "layers batch branches slots"]


def profile(
    model: Model,
    prompts: Sequence[Prompt],
    method: SpecFold,
    *,
    max_new_tokens: int = 256,
    chat: bool | None = None,
    batch_size: int = 1,
    on_batch: Callable[[int], None] | None = None,
) -> Iterator[Verification]:
    """Answer prompts greedily by dense verification, and tell of every one what folding would make of it.

    Args:
        model: a block-diffusion target.
        prompts: as in `generate`.
        method: the drafts, and the delta up to which rows are folded.
        max_new_tokens: most new tokens a prompt.
        chat: put texts through the chat template; by default where the model has one.
        batch_size: prompts decoded side by side.
        on_batch: called with the number of prompts that are done.

    Raises:
        InputError: a prompt or a setting can't be used.
    """
    check_method(model, method)
    if method.sub_block_cache:
        raise InputError("profiles are of whole blocks: leave sub_block_cache out")
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, not {batch_size}")
    encoded = [encode_prompt(model, prompt, chat) for prompt in prompts]
    check_lengths(model, encoded, max_new_tokens)
    check_no_mask(model, encoded)
    keys, settings = row_keys(0, len(prompts)), sampling(0.0, 1.0, 0, model.config.vocab_size)

    def verifications() -> Iterator[Verification]:
        for first in range(0, len(encoded), batch_size):
            rows = encoded[first : first + batch_size]
            asked = make_requests(model, rows, batch_size, keys[first : first + batch_size], max_new_tokens, settings)
            for seen in _of_batch(model, asked, method, max_new_tokens):
                yield dataclasses.replace(seen, prompt=first + seen.prompt)
            if on_batch is not None:
                on_batch(first + len(rows))

    return verifications()


def _of_batch(model: Model, requests: Requests, method: SpecFold, limit: int) -> Iterator[Verification]:
    """The verifications of a batch, whose rows' limits are at most `limit`, as they are made."""
    spec = denoising_spec(model.config, method.baseline)
    budget, nodes = method.budget or method.graph.budget, method.graph.budget
    tables = graph_tables(method.graph)
    room = power_of_two(limit)
    capacity = requests.prompts.shape[1] + room + spec.block_size
    sharding = None if model.mesh is None else cache_sharding(model.mesh)
    rows = (1 + budget) * spec.block_size

    def start(decoder: Decoder, asked: Requests) -> SpiffyState:
        state = begin(decoder, asked, spec, capacity=capacity, room=room, sharding=sharding)
        return without_drafts(state, budget, nodes)

    def step(
        decoder: Decoder, state: SpiffyState, asked: Requests, threshold: Array, tables: GraphTables, delta: Array
    ) -> tuple[SpiffyState, _Seen]:
        plan = Plan(spec, tables, budget, method.adopt, serial=False)
        folded = FoldSettings(delta, (rows,), "correct")
        return iterate(decoder, state, asked, threshold, plan), _look(decoder, state, plan, folded)

    sizes = requests.prompts.shape, requests.stop_ids.shape, tables.positions.shape, tables.depth, tables.ranks
    key = ("profile", sizes, spec, budget, method.adopt, room)
    first = compile_once(model, ("start", *key), start, requests)
    state = first(model.params, requests)
    settings = jnp.float32(method.threshold), tables, jnp.float32(method.delta)
    program = compile_once(model, key, step, state, requests, *settings)
    while not np.all(state.done):
        moves = ~np.asarray(state.done)
        state, seen = program(model.params, state, requests, *settings)
        yield from _verifications(seen, moves)


def _look(decoder: Decoder, state: SpiffyState, plan: Plan, folded: FoldSettings) -> _Seen:
    """The state's verification, densely and folded."""
    spec, drafts = plan.spec, state.drafts
    blocks = jnp.concatenate([state.block[:, None], drafts.blocks], axis=1)
    visible = jax.vmap(lambda block: seen_slots(block, spec), in_axes=1, out_axes=1)(blocks)
    folding = folding_of(blocks, drafts, spec, plan.tables, folded)
    dense = dataclasses.replace(folding, delta=jnp.float32(-1), attention="split")

    def reports(asked: Folding) -> LayerReport:
        stacked = decoder.branches(blocks, state.cache, visible, asked).reports
        return LayerReport(*map(jnp.stack, zip(*stacked, strict=True)))

    of_folded = reports(folding)
    return _Seen(
        lengths=state.cache.lengths,
        valid=drafts.valid,
        levels=plan.tables.levels[drafts.nodes],
        masked=state.block == spec.mask_token_id,
        fresh=folding.forced[0],
        residual=reports(dense).residual,
        recomputed=of_folded.recomputed,
        surviving=of_folded.surviving,
    )


def _verifications(seen: _Seen, moves: Bool[np.ndarray, " batch"]) -> Iterator[Verification]:
    lengths, possible, levels, masked, fresh = map(
        np.asarray, (seen.lengths, seen.valid, seen.levels, seen.masked, seen.fresh)
    )
    residual, recomputed, surviving = map(np.asarray, (seen.residual, seen.recomputed, seen.surviving))
    for row in np.flatnonzero(moves & possible.any(axis=1)):
        valid = possible[row]
        yield Verification(
            prompt=int(row),
            before=int(lengths[row]),
            levels=levels[row, valid],
            masked=masked[row],
            fresh=fresh[row, 1:][valid],
            residual=residual[:, row, 1:][:, valid],
            recomputed=recomputed[:, row, 1:][:, valid],
            surviving=surviving[:, row, 1:][:, valid],
        )
