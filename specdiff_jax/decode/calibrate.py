"""`calibrate`: a draft graph for a model and a threshold, from how the model decodes some prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from specdiff_jax.calibration import BlockTrace, DraftLimits, Objective, calibrated_nodes
from specdiff_jax.decode.generate import check_method, check_no_mask
from specdiff_jax.decode.graph_key import graph_key
from specdiff_jax.decode.methods import Vanilla, denoising_spec
from specdiff_jax.decode.requests import Prompt, check_lengths, encode_prompt, make_requests, row_keys
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.decode.tracing import traced
from specdiff_jax.draft_graph import DraftGraph
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model

DEPTH = 4
POSITION_RANKS = 16
VOCABULARY_RANKS = 3


def calibrate(
    model: Model,
    prompts: Sequence[Prompt],
    method: Vanilla | None = None,
    *,
    budget: int = 8,
    max_new_tokens: int = 256,
    chat: bool | None = None,
    batch_size: int = 1,
    objective: Objective = "saved",
    on_batch: Callable[[int], None] | None = None,
) -> DraftGraph:
    """Choose the drafts that would have saved most forwards (after Spiffy, arXiv 2509.18085, algorithm 2).

    The prompts are answered greedily by vanilla decoding; about 50 of the kind that will be asked are enough. The same
    input gives the same graph.

    Args:
        model: a block-diffusion target.
        prompts: as in `generate`.
        method: what the graph is for: the threshold and, where that is not the family's own, the sub-block.
        budget: number of drafts.
        max_new_tokens: most new tokens a prompt.
        chat: put texts through the chat template; by default where the model has one.
        batch_size: prompts decoded side by side.
        objective: "saved" counts the forwards that a graph would have saved; "accumulated" is Spiffy's own, the counts
            of its nodes and those of their parents.
        on_batch: called with the number of prompts that are done.

    Raises:
        InputError: a prompt or a setting can't be used, or the answers hold nothing to draft.
    """
    method = method or Vanilla()
    traces = trace_prompts(model, prompts, method, max_new_tokens, chat, batch_size, on_batch)
    return choose_graph(model, method, traces, budget, objective)


def trace_prompts(
    model: Model,
    prompts: Sequence[Prompt],
    method: Vanilla,
    max_new_tokens: int = 256,
    chat: bool | None = None,
    batch_size: int = 1,
    on_batch: Callable[[int], None] | None = None,
) -> Iterator[BlockTrace]:
    """How vanilla decoding fills the blocks of the answers to some prompts; arguments and errors as in `calibrate`."""
    check_method(model, method)
    if method.sub_block_cache:
        raise InputError("graphs are calibrated on whole blocks: leave sub_block_cache out")
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, not {batch_size}")
    if not prompts:
        raise InputError("calibration needs at least one prompt")
    encoded = [encode_prompt(model, prompt, chat) for prompt in prompts]
    check_lengths(model, encoded, max_new_tokens)
    check_no_mask(model, encoded)
    keys, settings = row_keys(0, len(prompts)), sampling(0.0, 1.0, 0, model.config.vocab_size)

    def traces() -> Iterator[BlockTrace]:
        for begin in range(0, len(encoded), batch_size):
            rows = encoded[begin : begin + batch_size]
            asked = make_requests(model, rows, batch_size, keys[begin : begin + batch_size], max_new_tokens, settings)
            yield from traced(model, asked, method, max_new_tokens, VOCABULARY_RANKS)
            if on_batch is not None:
                on_batch(begin + len(rows))

    return traces()


def choose_graph(
    model: Model, method: Vanilla, traces: Iterable[BlockTrace], budget: int, objective: Objective = "saved"
) -> DraftGraph:
    """The graph of so many drafts that fits the traces best; arguments as in `calibrate`."""
    spec = denoising_spec(model.config, method)
    limits = DraftLimits(
        mask_token_id=spec.mask_token_id,
        sub_block=spec.sub_block,
        depth=DEPTH,
        position_ranks=min(POSITION_RANKS, spec.block_size),
    )
    return DraftGraph(graph_key(model, method), calibrated_nodes(traces, limits, budget, objective))
