"""What drafts save: forwards of Spiffy against vanilla decoding, over the budget and kinds of draft graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import specdiff_jax as sd
from bench.draft_answers import calibration_prompts, counters, held_out
from bench.results import Row
from bench.target import implementation
from bench.tasks import Problem
from specdiff_jax.calibration import Objective
from specdiff_jax.decode.calibrate import choose_graph, trace_prompts

KINDS = ("sets", "sets, no adoption", "sets, accumulated counts", "one token")
"""Calibrated for saved forwards, with and without complete drafts as commits; for Spiffy's own objective; siblings of
one token each."""


@dataclass(frozen=True)
class DraftBench:
    """What is measured.

    Attributes:
        budgets: numbers of drafts.
        kinds: of graphs, of `KINDS`.
        problems: held-out ones of each task that are answered.
        batch: prompts side by side.
        threshold: confidence at which a token is accepted.
        max_new_tokens: most new tokens a prompt.
        dtype: of weights and activations.
    """

    budgets: Sequence[int]
    kinds: Sequence[str]
    problems: int
    batch: int
    threshold: float
    max_new_tokens: int
    dtype: str


def measure(name: str, asked: DraftBench) -> Iterator[Row]:
    """A row for vanilla decoding, then one for each kind and budget; graphs are calibrated on training problems.

    Args:
        name: of a block-diffusion model.
        asked: what is measured.
    """
    model = sd.load(name, dtype=asked.dtype)
    vanilla = sd.Vanilla(asked.threshold)
    test = held_out(asked.problems)
    baseline = _answers(model, test, vanilla, asked)
    settings = {"implementation": implementation(model), **asdict(asked), "budgets": None, "kinds": None}
    common = {"model": name, "task": "all"}
    settings = {key: value for key, value in settings.items() if value is not None and key != "problems"}
    yield {**common, "method": "vanilla", "settings": settings, **counters(test, baseline, baseline)}
    traces = list(trace_prompts(model, calibration_prompts(), vanilla, asked.max_new_tokens, batch_size=asked.batch))
    for kind in asked.kinds:
        objective: Objective = "accumulated" if kind == "sets, accumulated counts" else "saved"
        for budget in asked.budgets:
            if kind == "one token":
                graph = sd.fixed_graph(budget, 1)
            else:
                graph = choose_graph(model, vanilla, traces, budget, objective)
            method = sd.Spiffy(graph, threshold=asked.threshold, adopt=kind != "sets, no adoption")
            answers = _answers(model, test, method, asked)
            yield {
                **common,
                "method": "spiffy",
                "settings": {**settings, "nodes": kind, "budget": budget},
                **counters(test, answers, baseline),
                **_hits(graph, answers),
            }


def _answers(
    model: sd.Model, test: Sequence[Problem], method: sd.Vanilla | sd.Spiffy, asked: DraftBench
) -> list[sd.Generation]:
    prompts = [problem.prompt for problem in test]
    return sd.generate(model, prompts, method, max_new_tokens=asked.max_new_tokens, batch_size=asked.batch)


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
