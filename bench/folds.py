"""What folding costs and gives: accuracy, forwards and speed over delta, the number of drafts and their depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import specdiff_jax as sd
from bench.draft_answers import calibration_prompts, counters, held_out
from bench.results import Row
from bench.target import implementation
from specdiff_jax.decode.calibrate import choose_graph, trace_prompts
from specdiff_jax.draft_graph import DraftGraph
from specdiff_jax.model.branches import FoldedAttention

USUAL_DELTA, USUAL_BUDGET, CHAIN_BUDGET = 0.1, 8, 7
"""Of the sweeps over something else; chains have the number of drafts that the SpecFold paper gives them."""


@dataclass(frozen=True)
class FoldBench:
    """What is measured.

    Attributes:
        deltas: with `USUAL_BUDGET` calibrated drafts.
        budgets: of calibrated drafts, with `USUAL_DELTA` and by Spiffy.
        depths: of `CHAIN_BUDGET` drafts in overlapping chains, with `USUAL_DELTA` and by Spiffy.
        buckets: capacities of a layer.
        attention: of folded rows.
        problems: held-out ones of each task that are answered.
        batch: prompts side by side.
        threshold: confidence at which a token is accepted.
        max_new_tokens: most new tokens a prompt.
        dtype: of weights and activations.
    """

    deltas: Sequence[float]
    budgets: Sequence[int]
    depths: Sequence[int]
    buckets: int
    attention: FoldedAttention
    problems: int
    batch: int
    threshold: float
    max_new_tokens: int
    dtype: str


def measure(name: str, asked: FoldBench) -> Iterator[Row]:
    """A row for vanilla decoding, then one for each point of the sweeps.

    Args:
        name: of a block-diffusion model.
        asked: what is measured.
    """
    model = sd.load(name, dtype=asked.dtype)
    vanilla = sd.Vanilla(asked.threshold)
    test = held_out(asked.problems)
    prompts = [problem.prompt for problem in test]

    def answers(method: sd.Vanilla | sd.Spiffy) -> list[sd.Generation]:
        return sd.generate(model, prompts, method, max_new_tokens=asked.max_new_tokens, batch_size=asked.batch)

    baseline = answers(vanilla)

    def row(method: str, about: dict[str, Any], given: Sequence[sd.Generation]) -> Row:
        ratios = [answer.fold_ratio for answer in given if answer.fold_ratio is not None]
        seconds = sum(answer.seconds for answer in given[:: asked.batch])
        return {
            "model": name,
            "task": "all",
            "method": method,
            "settings": {
                "implementation": implementation(model),
                "dtype": asked.dtype,
                "batch": asked.batch,
                "threshold": asked.threshold,
                "max_new_tokens": asked.max_new_tokens,
                **about,
            },
            **counters(test, given, baseline),
            "fold_ratio": round(sum(ratios) / len(ratios), 4) if ratios else None,
            "tokens_per_second": round(sum(answer.new_tokens for answer in given) / seconds, 1),
        }

    yield row("vanilla", {}, baseline)
    traces = list(trace_prompts(model, calibration_prompts(), vanilla, asked.max_new_tokens, batch_size=asked.batch))

    def calibrated(budget: int) -> DraftGraph:
        return choose_graph(model, vanilla, traces, budget)

    for nodes, graph, deltas in _points(asked, calibrated):
        about = {"nodes": nodes, "budget": graph.budget, "depth": graph.depth}
        for delta in deltas:
            if delta is None:
                spiffy = sd.Spiffy(graph, threshold=asked.threshold)
                yield row("spiffy", about, answers(spiffy))
            else:
                folds = sd.SpecFold(
                    graph, threshold=asked.threshold, delta=delta, attention=asked.attention, buckets=asked.buckets
                )
                how = {"delta": delta, "attention": asked.attention, "buckets": asked.buckets}
                yield row("specfold", {**about, **how}, answers(folds))


def _points(
    asked: FoldBench, calibrated: Callable[[int], DraftGraph]
) -> Iterator[tuple[str, DraftGraph, list[float | None]]]:
    """Graphs, and the deltas that each is measured with; None is Spiffy."""
    for budget in sorted({*asked.budgets, *([USUAL_BUDGET] if asked.deltas else [])}):
        deltas: list[float | None] = [None, USUAL_DELTA] if budget in asked.budgets else []
        if budget == USUAL_BUDGET:
            deltas += [delta for delta in asked.deltas if delta not in deltas]
        yield "sets", calibrated(budget), deltas
    for depth in asked.depths:
        yield "chains", sd.fixed_graph(CHAIN_BUDGET, depth), [None, USUAL_DELTA]
