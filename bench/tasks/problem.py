"""What every task yields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem with a worked answer.

    Attributes:
        task: one of `bench.tasks.TASK_NAMES`.
        prompt: what the user asks, ASCII, at most 250 characters.
        answer: a worked answer that scores as correct, ASCII, 90 to 500 characters; what a model is trained on.
        check: what scoring needs; its keys are the task's own.
        key: what is asked, without wording, names and letters: problems of one key are one problem.
    """

    task: str
    prompt: str
    answer: str
    check: Mapping[str, Any]
    key: str
