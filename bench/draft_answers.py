"""What every measurement of drafts has in common: what graphs are calibrated on, what is asked, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import specdiff_jax as sd
from bench.tasks import TASK_NAMES, Problem, problems, score

CALIBRATION_SEED, CALIBRATION_PROBLEMS = 7, 10
"""Of the training problems of each task that graphs are calibrated on."""


def calibration_prompts() -> list[str]:
    """Training problems of all tasks."""
    return [
        problem.prompt
        for task in TASK_NAMES
        for problem in problems(task, "train", CALIBRATION_SEED, CALIBRATION_PROBLEMS)
    ]


def held_out(count: int) -> list[Problem]:
    """So many test problems of each task."""
    return [problem for task in TASK_NAMES for problem in problems(task, "test", 0, count)]


def counters(
    test: Sequence[Problem], answers: Sequence[sd.Generation], baseline: Sequence[sd.Generation]
) -> dict[str, Any]:
    """Accuracy, and forwards against those of vanilla decoding's answers."""
    forwards, tokens = sum(answer.forwards for answer in answers), sum(answer.new_tokens for answer in answers)
    same = sum(mine.tokens == theirs.tokens for mine, theirs in zip(answers, baseline, strict=True))
    right = score(test, [answer.text for answer in answers])
    return {
        "problems": len(test),
        "accuracy": sum(right) / len(right),
        "forwards": forwards,
        "forwards_saved": 1 - forwards / sum(answer.forwards for answer in baseline),
        "tokens_per_forward": round(tokens / forwards, 4),
        "accepted_drafts": sum(answer.accepted_drafts for answer in answers),
        "identical_to_baseline": same / len(test),
    }
