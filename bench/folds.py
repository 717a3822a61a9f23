"""What folding costs and gives: accuracy, forwards and speed over delta, the number of drafts and their depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import specdiff_jax as sd
from bench.draft_answers import Answering, Questions
from bench.results import Row
from specdiff_jax.draft_graph import DraftGraph
from specdiff_jax.folded_attention import FoldedAttention

USUAL_DELTA, USUAL_BUDGET, USUAL_BUCKETS, CHAIN_BUDGET = 0.1, 8, 4, 7
"""Of the sweeps over something else; chains have the number of drafts that the SpecFold paper gives them."""


@dataclass(frozen=True)
class Sweeps:
    """What is varied.

    Attributes:
        deltas: with `USUAL_BUDGET` calibrated drafts.
        budgets: of calibrated drafts, with `USUAL_DELTA` and by Spiffy.
        depths: of `CHAIN_BUDGET` drafts in overlapping chains, with `USUAL_DELTA` and by Spiffy.
    """

    deltas: Sequence[float]
    budgets: Sequence[int]
    depths: Sequence[int]


def measure(
    name: str, asked: Questions, sweeps: Sweeps, buckets: int = USUAL_BUCKETS, attention: FoldedAttention = "split"
) -> Iterator[Row]:
    """A row for vanilla decoding, then one for each point of the sweeps.

    Args:
        name: of a block-diffusion model.
        asked: what is asked.
        sweeps: what is varied.
        buckets: how many row counts a layer is compiled for.
        attention: of folded rows.
    """
    answering = Answering(name, asked)

    def row(method: str, about: dict[str, Any], answers: Sequence[sd.Generation]) -> Row:
        ratios = [answer.fold_ratio for answer in answers if answer.fold_ratio is not None]
        seconds = sum(answer.seconds for answer in answers[:: asked.batch])
        return {
            **answering.row(method, about, answers),
            "fold_ratio": round(sum(ratios) / len(ratios), 4) if ratios else None,
            "tokens_per_second": round(sum(answer.new_tokens for answer in answers) / seconds, 1),
        }

    yield row("vanilla", {}, answering.baseline)
    for nodes, graph, deltas in points(sweeps, answering.calibrated):
        about = {"nodes": nodes, "budget": graph.budget, "depth": graph.depth}
        for delta in deltas:
            if delta is None:
                spiffy = sd.Spiffy(graph, threshold=asked.threshold, sub_block_cache=asked.sub_block_cache)
                yield row("spiffy", about, answering.answers(spiffy))
            else:
                folds = sd.SpecFold(
                    graph,
                    threshold=asked.threshold,
                    sub_block_cache=asked.sub_block_cache,
                    delta=delta,
                    attention=attention,
                    buckets=buckets,
                )
                how = {"delta": delta, "attention": attention, "buckets": buckets}
                yield row("specfold", {**about, **how}, answering.answers(folds))


def points(
    asked: Sweeps, calibrated: Callable[[int], DraftGraph]
) -> Iterator[tuple[str, DraftGraph, list[float | None]]]:
    """Graphs, and the deltas that each is measured with; None is Spiffy."""
    for budget in sorted({*asked.budgets, *([USUAL_BUDGET] if asked.deltas else [])}):
        deltas: list[float | None] = [None, USUAL_DELTA] if budget in asked.budgets else []
        if budget == USUAL_BUDGET:
            deltas += [delta for delta in asked.deltas if delta not in deltas]
        yield "sets", calibrated(budget), deltas
    for depth in asked.depths:
        yield "chains", sd.fixed_graph(CHAIN_BUDGET, depth), [None, USUAL_DELTA]
