"""Problems with worked answers and exact scoring, written for this project: seeded and split by what is asked.

They stand where the papers use GSM8K, MATH, HumanEval, MBPP and IFEval, for models of a few million parameters.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from bench.tasks import editing, equations, formatting, functions, word_problems
from bench.tasks.draws import Draws
from bench.tasks.problem import Problem
from specdiff_jax.errors import InputError

__all__ = ["TASK_NAMES", "Problem", "Split", "is_correct", "mixed_problems", "problems", "score"]

Split = Literal["train", "test"]

_TASKS = {task.NAME: task for task in (word_problems, equations, functions, editing, formatting)}
TASK_NAMES = tuple(_TASKS)
"""The tasks, each a module of this package."""

_TEST_SHARE = 16
"""One key in so many belongs to the test split."""

_MOST_TESTED = 5000
"""Every task has more different keys in its test split; a few thousand draws of them stay fast."""


def problems(task: str, split: Split, seed: int, count: int) -> list[Problem]:
    """Draws problems of one split.

    A problem belongs to the test split by a hash of its `key`, so that what is asked is never in both, whatever the
    seeds and in whatever words. Held out are, by task:

    - word-problems: the calculation, that is all its steps with their numbers in order;
    - equations: the equation, whatever its letter and the order of its sides and terms;
    - functions: the specification, whatever the names;
    - editing: the given value with what it becomes after each instruction;
    - formatting: the subject with all constraints and their settings.

    The parts of a problem (an operation, a constraint, a list of instructions) are in both splits.

    Args:
        task: one of `TASK_NAMES`.
        split: "train" or "test"; the keys of a test draw are all different.
        seed: the same seed gives the same problems.
        count: how many.

    Raises:
        InputError: there is no such task or split, or `count` is negative, or over 5000 for the test split.
    """
    if task not in _TASKS:
        raise InputError(f"task {task!r} is unknown: use one of {', '.join(TASK_NAMES)}")
    if split not in ("train", "test"):
        raise InputError(f"split {split!r} is unknown: use train or test")
    if count < 0:
        raise InputError(f"count is {count}: it must be at least 0")
    if split == "test" and count > _MOST_TESTED:
        raise InputError(f"count is {count}: the test split of a task gives at most {_MOST_TESTED} different problems")
    draws = _draws(task, split, seed)
    return [next(draws) for _ in range(count)]


def mixed_problems(split: Split, seed: int, count: int) -> list[Problem]:
    """`count` problems of every task, the tasks taking turns, so that all batches of them are alike.

    Raises:
        InputError: as `problems`.
    """
    by_task = [problems(task, split, seed, count) for task in TASK_NAMES]
    return [problem for turn in zip(*by_task, strict=True) for problem in turn]


def is_correct(problem: Problem, text: str) -> bool:
    """Whether `text` answers the problem; for `functions` this runs it, confined (`bench.tasks.confinement`)."""
    return _TASKS[problem.task].is_correct(problem, text)


def score(problems: Sequence[Problem], texts: Sequence[str]) -> list[bool]:
    """`is_correct` of many, with as many processes for code as there are CPUs.

    Raises:
        ValueError: there is not one text for each problem.
    """
    if len(problems) != len(texts):
        raise ValueError(f"{len(problems)} problems but {len(texts)} texts")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(is_correct, problems, texts))


def _draws(task: str, split: Split, seed: int) -> Iterator[Problem]:
    rng = Draws(f"{task} {seed}")
    seen: set[str] = set()
    while True:
        problem = _TASKS[task].generate(rng)
        in_test = zlib.crc32((task + problem.key).encode()) % _TEST_SHARE == 0
        if in_test != (split == "test") or problem.key in seen:
            continue
        if in_test:
            seen.add(problem.key)
        yield problem
