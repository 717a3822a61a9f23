"""What every measurement of drafts has in common: what graphs are calibrated on, what is asked, and what is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import specdiff_jax as sd
from bench.results import Row
from bench.target import implementation
from bench.tasks import mixed_problems, score
from specdiff_jax.calibration import BlockTrace, Objective
from specdiff_jax.decode.calibrate import choose_graph, trace_prompts
from specdiff_jax.draft_graph import DraftGraph

CALIBRATION_SEED, CALIBRATION_PROBLEMS = 7, 10
"""Of the training problems of each task that graphs are calibrated on."""


@dataclass(frozen=True)
class Questions:
    """What is asked, and how it is answered.

    Attributes:
        problems: held-out ones of each task.
        batch: prompts side by side.
        threshold: confidence at which a token is accepted.
        max_new_tokens: most new tokens a prompt.
        dtype: of weights and activations.
        sub_block_cache: whether all methods keep to the rows of a sub-block where they can.
    """

    problems: int
    batch: int
    threshold: float
    max_new_tokens: int
    dtype: str
    sub_block_cache: bool = False


class Answering:
    """A model that answers questions by one method after the other, against vanilla decoding."""

    def __init__(self, name: str, asked: Questions) -> None:
        self.name, self.asked = name, asked
        self.model = sd.load(name, dtype=asked.dtype)
        self.test = mixed_problems("test", 0, asked.problems)

    def answers(self, method: sd.Vanilla | sd.Spiffy) -> list[sd.Generation]:
        """The answers to all questions."""
        prompts = [problem.prompt for problem in self.test]
        limit, batch = self.asked.max_new_tokens, self.asked.batch
        return sd.generate(self.model, prompts, method, max_new_tokens=limit, batch_size=batch)

    @cached_property
    def baseline(self) -> list[sd.Generation]:
        """The answers of vanilla decoding."""
        return self.answers(sd.Vanilla(self.asked.threshold, sub_block_cache=self.asked.sub_block_cache))

    def calibrated(self, budget: int, objective: Objective = "saved") -> DraftGraph:
        """A draft graph from training problems of all tasks."""
        return choose_graph(self.model, sd.Vanilla(self.asked.threshold), self._traces, budget, objective)

    @cached_property
    def _traces(self) -> list[BlockTrace]:
        prompts = [problem.prompt for problem in mixed_problems("train", CALIBRATION_SEED, CALIBRATION_PROBLEMS)]
        limit, batch = self.asked.max_new_tokens, self.asked.batch
        method = sd.Vanilla(self.asked.threshold)
        return list(trace_prompts(self.model, prompts, method, limit, batch_size=batch))

    def row(self, method: str, about: Mapping[str, Any], answers: Sequence[sd.Generation]) -> Row:
        """One method's row: accuracy, and forwards against those of vanilla decoding.

        Args:
            method: its name.
            about: its settings.
            answers: to all questions.
        """
        forwards, tokens = sum(answer.forwards for answer in answers), sum(answer.new_tokens for answer in answers)
        same = sum(mine.tokens == theirs.tokens for mine, theirs in zip(answers, self.baseline, strict=True))
        right = score(self.test, [answer.text for answer in answers])
        return {
            "model": self.name,
            "task": "all",
            "method": method,
            "settings": {
                "implementation": implementation(self.model),
                "batch": self.asked.batch,
                "threshold": self.asked.threshold,
                "max_new_tokens": self.asked.max_new_tokens,
                "dtype": self.asked.dtype,
                **({"sub_block_cache": True} if self.asked.sub_block_cache else {}),
                **about,
            },
            "problems": len(self.test),
            "accuracy": sum(right) / len(right),
            "forwards": forwards,
            "forwards_saved": 1 - forwards / sum(answer.forwards for answer in self.baseline),
            "tokens_per_forward": round(tokens / forwards, 4),
            "accepted_drafts": sum(answer.accepted_drafts for answer in answers),
            "identical_to_baseline": same / len(self.test),
        }
