"""What drafts save: forwards of Spiffy against vanilla decoding, over the budget and kinds of draft graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import specdiff_jax as sd
from bench.draft_answers import Answering, Questions
from bench.results import Row

KINDS = ("sets", "sets, no adoption", "sets, accumulated counts", "one token")
"""Calibrated for saved forwards, with and without complete drafts as commits; for Spiffy's own objective; siblings of
one token each."""


def measure(name: str, asked: Questions, budgets: Sequence[int], kinds: Sequence[str]) -> Iterator[Row]:
    """A row for vanilla decoding, then one for each kind and budget; graphs are calibrated on training problems.

    Args:
        name: of a block-diffusion model.
        asked: what is asked.
        budgets: numbers of drafts.
        kinds: of graphs, of `KINDS`.
    """
    answering = Answering(name, asked)
    yield answering.row("vanilla", {}, answering.baseline)
    for kind in kinds:
        for budget in budgets:
            if kind == "one token":
                graph = sd.fixed_graph(budget, 1)
            else:
                accumulated = kind == "sets, accumulated counts"
                graph = answering.calibrated(budget, "accumulated" if accumulated else "saved")
            method = sd.Spiffy(graph, threshold=asked.threshold, adopt=kind != "sets, no adoption")
            answers = answering.answers(method)
            yield {
                **answering.row("spiffy", {"nodes": kind, "budget": budget}, answers),
                **_hits(graph, answers),
            }


def _hits(graph: sd.DraftGraph, answers: Sequence[sd.Generation]) -> dict[str, Any]:
    """Accepted drafts by level, and how many of those behind another draft came right after their fold parent."""
    nodes, after_fold_parent = (
        [sum(counts) for counts in zip(*(getattr(answer, key) for answer in answers), strict=True)]
        for key in ("draft_hits", "fold_parent_hits")
    )
    deeper = [index for index, level in enumerate(graph.levels) if level > 1]
    by_level = [
        sum(count for count, at in zip(nodes, graph.levels, strict=True) if at == level)
        for level in range(1, graph.depth + 1)
    ]
    return {
        "hits_by_level": by_level,
        "hits_behind_drafts": sum(nodes[index] for index in deeper),
        "hits_after_fold_parent": sum(after_fold_parent[index] for index in deeper),
    }
