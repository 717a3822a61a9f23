"""`generate`: prompts in, texts and counters out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np

from specdiff_jax.decode import autoregressive, block_diffusion, dflash, linear_speculation, spiffy
from specdiff_jax.decode.graph_key import graph_key
from specdiff_jax.decode.loop import BatchResult, OnTokens
from specdiff_jax.decode.methods import (
    Autoregressive,
    DFlash,
    LinearSpeculation,
    Method,
    Spiffy,
    Vanilla,
    denoising_spec,
)
from specdiff_jax.decode.requests import Prompt, Requests, check_lengths, encode_prompt, make_requests, row_keys
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.draft_graph import check_graph
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model
from specdiff_jax.text import TextStream


@dataclass(frozen=True)
class Generation:
    """The answer to one prompt.

    Attributes:
        prompt: the prompt as given, if it was text; else its ids or messages as text.
        text: the answer, without special tokens.
        tokens: new ids, the stop id included.
        prompt_tokens: tokens that were read.
        new_tokens: tokens that were made.
        forwards: target forwards after the prefill.
        tokens_per_forward: new tokens over forwards; None where the prefill made the only one.
        accepted_drafts: drafts that verification accepted.
        acceptance_length: committed tokens per verification; None where no drafter runs.
        fold_ratio: folded child rows over child rows; None unless SpecFold ran.
        seconds: time of the batch that the prompt was in, without compilation.
        tokens_per_second: this prompt's new tokens over those seconds.
        stop: "eos" after a stop id, "length" at the limit.
        step_map: for each token, the forwards made when it became final; 0 is the prefill.
        draft_hits: how often each node of the draft graph was accepted; None where there is no graph.
        fold_parent_hits: how often of that right after the node's fold parent.
    """

    prompt: str
    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    new_tokens: int
    forwards: int
    tokens_per_forward: float | None
    accepted_drafts: int
    acceptance_length: float | None
    fold_ratio: float | None
    seconds: float
    tokens_per_second: float
    stop: Literal["eos", "length"]
    step_map: tuple[int, ...]
    draft_hits: tuple[int, ...] | None = None
    fold_parent_hits: tuple[int, ...] | None = None


def generate(
    model: Model,
    prompts: Sequence[Prompt],
    method: Method | None = None,
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int | Sequence[int] = 0,
    chat: bool | None = None,
    exact: bool = False,
    batch_size: int = 1,
    on_text: Callable[[int, str], None] | None = None,
    on_result: Callable[[int, Generation], None] | None = None,
) -> list[Generation]:
    """Answer prompts.

    Args:
        model: a loaded target.
        prompts: each a text, a list of chat messages ({"role", "content"}), or token ids.
        method: how to decode; by default `Vanilla()` for a diffusion model and `Autoregressive()` for any other.
        max_new_tokens: most new tokens a prompt.
        temperature: 0 is greedy.
        top_p: mass of the nucleus to sample from.
        top_k: number of candidates to sample from; 0 means all.
        seed: one seed for all (each prompt then draws from the seed and its index), or one a prompt.
        chat: put texts through the chat template; by default where the model has one.
        exact: float32 and one prompt at a time (on each data-parallel device), so that no result depends on what else
            is in the batch.
        batch_size: prompts decoded side by side.
        on_text: called with a prompt's index and its next piece of text while it is made.
        on_result: called with a prompt's index and its result as soon as its batch is done.

    Returns:
        one result a prompt, in order.

    Raises:
        InputError: a prompt or a setting can't be used.
    """
    if method is None:
        method = Autoregressive() if model.config.block_size is None else Vanilla()
    check_method(model, method)
    settings = sampling(temperature, top_p, top_k, model.config.vocab_size)
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, not {batch_size}")
    if exact and model.dtype != jnp.float32:
        raise InputError(
            f"exact needs float32 weights, and {model.name} is loaded as {model.dtype}: load it with float32"
        )
    data_parallel = 1 if model.mesh is None else model.mesh.shape["data"]
    batch = data_parallel if exact else batch_size
    if batch % data_parallel:
        raise InputError(f"a batch of {batch} does not divide over {data_parallel} data-parallel devices")
    encoded = [encode_prompt(model, prompt, chat) for prompt in prompts]
    check_lengths(model, encoded, max_new_tokens)
    if not isinstance(method, Autoregressive | DFlash):
        check_no_mask(model, encoded)
    keys = row_keys(seed, len(prompts))

    results: list[Generation] = []
    for begin in range(0, len(encoded), batch):
        rows = encoded[begin : begin + batch]
        requests = make_requests(model, rows, batch, keys[begin : begin + batch], max_new_tokens, settings)
        stream = None if on_text is None else _BatchStream(model, begin, len(rows), on_text)
        answered = _run(model, requests, method, max_new_tokens, stream, exact)
        if stream is not None:
            stream.finish()
        for index, row in enumerate(rows):
            result = _generation(model, prompts[begin + index], len(row), answered, index)
            results.append(result)
            if on_result is not None:
                on_result(begin + index, result)
    return results


def check_method(model: Model, method: Method) -> None:
    """Refuse a method that the target was not made for.

    Raises:
        InputError: naming both.

    Warns:
        UserWarning: the method forces a block size that the target was not trained for.
    """
    name = type(method).__name__
    try:
        if isinstance(method, Vanilla):
            spec = denoising_spec(model.config, method)
            if spec.block_size != model.config.block_size:
                warnings.warn(
                    f"{model.name} was trained for blocks of {model.config.block_size}, not of {spec.block_size}",
                    stacklevel=3,
                )
        elif isinstance(method, Spiffy):
            check_graph(method.graph, graph_key(model, method.baseline), model.config.vocab_size, method.force)
        elif isinstance(method, LinearSpeculation):
            linear_speculation.speculation_spec(model.config)
        elif model.config.family == "fast_dllm_v2":
            raise InputError("a fast_dllm_v2 model is no autoregressive one: decode it with method vanilla")
        elif isinstance(method, DFlash):
            dflash.check_drafter(model, method.drafter)
    except InputError as error:
        raise InputError(f"method {name.lower()} is not available for {model.name}: {error}") from error


def _run(
    model: Model, requests: Requests, method: Method, limit: int, on_tokens: OnTokens | None, exact: bool
) -> BatchResult:
    match method:
        case Autoregressive():
            return autoregressive.run(model, requests, method, limit, on_tokens)
        case Vanilla():
            return block_diffusion.run(model, requests, method, limit, on_tokens)
        case DFlash():
            return dflash.run(model, requests, method, limit, on_tokens, serial=exact)
        case LinearSpeculation():
            return linear_speculation.run(model, requests, method, limit, on_tokens)
        case Spiffy():
            return spiffy.run(model, requests, method, limit, on_tokens, serial=exact)


def check_no_mask(model: Model, encoded: Sequence[Sequence[int]]) -> None:
    """Refuse a mask id in a prompt: it would be filled in like those of a block."""
    mask = model.config.mask_token_id
    if any(mask in ids for ids in encoded):
        raise InputError(f"a prompt holds token id {mask}, the mask of {model.name}: take it out")


def _generation(model: Model, prompt: Prompt, prompt_tokens: int, batch: BatchResult, row: int) -> Generation:
    count, forwards = int(batch.counts[row]), int(batch.forwards[row])
    new = tuple(batch.tokens[row, :count].tolist())
    verifications = 0 if batch.verifications is None else int(batch.verifications[row])
    return Generation(
        prompt=prompt if isinstance(prompt, str) else str(list(prompt)),
        text="" if model.tokenizer is None else model.tokenizer.decode(new),
        tokens=new,
        prompt_tokens=prompt_tokens,
        new_tokens=count,
        forwards=forwards,
        tokens_per_forward=count / forwards if forwards else None,
        accepted_drafts=int(batch.accepted_drafts[row]),
        acceptance_length=(count - 1) / verifications if verifications else None,
        fold_ratio=_fold_ratio(batch, row),
        seconds=batch.seconds,
        tokens_per_second=count / batch.seconds,
        stop="eos" if new[-1] in model.stop_ids else "length",
        step_map=tuple(batch.step_map[row, :count].tolist()),
        draft_hits=None if batch.hits is None else tuple(batch.hits[row].tolist()),
        fold_parent_hits=None if batch.fold_parent_hits is None else tuple(batch.fold_parent_hits[row].tolist()),
    )


def _fold_ratio(batch: BatchResult, row: int) -> float | None:
    """Folded child rows over child rows; None where nothing folds or nothing was drafted."""
    if batch.child_rows is None or batch.folded_rows is None or not batch.child_rows[row]:
        return None
    return float(batch.folded_rows[row] / batch.child_rows[row])


class _BatchStream:
    """Turns the growing token buffers of a batch into pieces of text, one stream a row."""

    def __init__(self, model: Model, begin: int, rows: int, on_text: Callable[[int, str], None]) -> None:
        if model.tokenizer is None:
            raise InputError(f"model {model.name} has no tokenizer: its text can't be streamed")
        self.begin = begin
        self.streams = [TextStream(model.tokenizer) for _ in range(rows)]
        self.sent = [0] * rows
        self.on_text = on_text

    def __call__(self, tokens: np.ndarray, counts: np.ndarray) -> None:
        for row, stream in enumerate(self.streams):
            self._send(row, stream.push(tokens[row, self.sent[row] : counts[row]].tolist()))
            self.sent[row] = int(counts[row])

    def finish(self) -> None:
        for row, stream in enumerate(self.streams):
            self._send(row, stream.finish())

    def _send(self, row: int, piece: str) -> None:
        if piece:
            self.on_text(self.begin + row, piece)
