"""What every method's decoding has in common: a program that starts, and one that goes on until all rows are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdiff_jax.decode.programs import compile_once, result_shapes
from specdiff_jax.decode.requests import Requests
from specdiff_jax.loading import Model

STREAM_STEPS = 4
"""Forwards between two looks at the new tokens while streaming: a look costs one round trip to the device."""

OnTokens = Callable[[np.ndarray, np.ndarray], None]
"""Called with the tokens (batch, room) and how many of each row are final, for streaming."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LoopState:
    """Carry of a loop: what all methods have in it.

    Attributes:
        generated: new tokens; valid below `counts`.
        counts: new tokens of each row that are final.
        done: rows that met a stop id or their limit; they stay as they are.
    """

    generated: Int[Array, "batch room"]
    counts: Int[Array, " batch"]
    done: Bool[Array, " batch"]


@dataclass(frozen=True)
class BatchResult:
    """What a batch gave.

    Attributes:
        tokens: new tokens (batch, room).
        counts: how many of each row are valid.
        forwards: target forwards after the prefill that each row took part in.
        seconds: that it took, without compilation.
        step_map: for each new token, the row's forwards when it became final (batch, room); 0 is the prefill.
        accepted_drafts: drafted tokens of each row that verification accepted.
        verifications: verifications of each row; None where no drafter runs.
        hits: how often each node of the draft graph was accepted (batch, nodes); None where there is none.
        fold_parent_hits: how often of that right after its fold parent.
        child_rows: rows of drafts of each batch row, over all layers; None unless rows are folded.
        folded_rows: those of them that were folded.
    """

    tokens: np.ndarray
    counts: np.ndarray
    forwards: np.ndarray
    seconds: float
    step_map: np.ndarray
    accepted_drafts: np.ndarray
    verifications: np.ndarray | None = None
    hits: np.ndarray | None = None
    fold_parent_hits: np.ndarray | None = None
    child_rows: np.ndarray | None = None
    folded_rows: np.ndarray | None = None


def run_loop(
    model: Model,
    key: tuple[Hashable, ...],
    start: Callable[..., Any],
    advance: Callable[..., Any],
    requests: Requests,
    *arguments: Any,
    on_tokens: OnTokens | None = None,
    options: Mapping[str, str | bool] | None = None,
) -> tuple[Any, float]:
    """Decode one batch.

    Args:
        model: the target.
        key: what tells these two programs apart from others of the model, beside the shapes of `requests`.
        start: (decoder, requests, *arguments) -> the state after the prefill.
        advance: (decoder, state, requests, steps, *arguments) -> the state after so many steps more, or fewer where all
            rows are done before; the state is donated.
        requests: the batch.
        arguments: arrays, or trees of them, for both.
        on_tokens: looked in every few steps.
        options: of the compiler.

    Returns:
        the state at the end, and the seconds that it took without compilation.
    """
    shapes = (requests.prompts.shape, requests.stop_ids.shape, requests.sampling.kind)
    first = compile_once(model, ("start", *key, *shapes), start, requests, *arguments)
    state_shapes = result_shapes(first)
    steps = jnp.int32(np.iinfo(np.int32).max if on_tokens is None else STREAM_STEPS)
    rest = compile_once(
        model,
        ("advance", *key, *shapes),
        advance,
        state_shapes,
        requests,
        steps,
        *arguments,
        donate=(0,),
        out_shardings=jax.tree.map(lambda leaf: leaf.sharding, state_shapes),
        options=options,
    )
    began = time.perf_counter()
    state: Any = first(model.params, requests, *arguments)
    while not np.all(state.done):
        if on_tokens is not None:
            on_tokens(np.asarray(state.generated), np.asarray(state.counts))
        state = rest(model.params, state, requests, steps, *arguments)
    seconds = time.perf_counter() - began
    if on_tokens is not None:
        on_tokens(np.asarray(state.generated), np.asarray(state.counts))
    return state, seconds


def while_undone(step: Callable[[Any], Any], state: LoopState, steps: Array) -> Any:
    """Apply `step` at most `steps` times, or until every row is done, in one `while_loop` on the device."""

    def unfinished(carry: tuple[Array, LoopState]) -> Array:
        made, current = carry
        return (made < steps) & ~jnp.all(current.done)

    return jax.lax.while_loop(unfinished, lambda carry: (carry[0] + 1, step(carry[1])), (jnp.int32(0), state))[1]
