"""What holds for every task: worked answers score, draws repeat, splits are disjoint, lengths are kept."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.tasks import TASK_NAMES, Problem, is_correct, problems, score
from specdiff_jax.errors import InputError

RUN_IN_PROCESS = tuple(name for name in TASK_NAMES if name != "functions")


def test_names() -> None:
    assert TASK_NAMES == ("word-problems", "equations", "functions", "editing", "formatting")


@pytest.mark.parametrize("task", RUN_IN_PROCESS)
def test_worked_answers_are_correct(task: str) -> None:
    drawn = [problem for seed in range(300) for problem in problems(task, "train", seed, 4)]
    assert [problem for problem in drawn if not is_correct(problem, problem.answer)] == []


def test_worked_functions_are_correct() -> None:
    drawn = [problem for seed in range(10) for problem in problems("functions", "train", seed, 4)]
    assert all(score(drawn, [problem.answer for problem in drawn]))


@pytest.mark.parametrize("task", TASK_NAMES)
@pytest.mark.parametrize("text", ["", "\n", "I do not know.", "[", "{", "```python", "\0"])
def test_nonsense_is_wrong(task: str, text: str) -> None:
    assert not is_correct(_form_of_its_own(task), text)


@pytest.mark.parametrize("task", RUN_IN_PROCESS)
@settings(max_examples=50, deadline=None)
@given(text=st.text())
def test_any_text_can_be_scored(task: str, text: str) -> None:
    assert is_correct(_form_of_its_own(task), text) is False


@functools.cache
def _form_of_its_own(task: str) -> Problem:
    """A problem that hardly any text solves by chance; one that asks for letters and commas only could be."""
    drawn = problems(task, "test", 0, 40)
    return next(problem for problem in drawn if len(problem.answer.splitlines()) > 2)


@pytest.mark.parametrize("task", TASK_NAMES)
def test_same_seed_same_problems(task: str) -> None:
    assert problems(task, "train", 3, 50) == problems(task, "train", 3, 50)
    assert problems(task, "train", 3, 50)[:20] == problems(task, "train", 3, 20)
    assert problems(task, "train", 3, 50) != problems(task, "train", 4, 50)


@pytest.mark.parametrize("task", TASK_NAMES)
def test_no_prompt_is_in_both_splits(task: str) -> None:
    trained = {problem.prompt for seed in range(3) for problem in problems(task, "train", seed, 1000)}
    tested = {problem.prompt for seed in range(3) for problem in problems(task, "test", seed, 60)}
    assert not trained & tested


@pytest.mark.parametrize("task", TASK_NAMES)
def test_prompts_are_new(task: str) -> None:
    tested = [problem.prompt for problem in problems(task, "test", 0, 300)]
    assert len(set(tested)) == 300
    assert len({problem.prompt for problem in problems(task, "train", 0, 2000)}) > 1900


@pytest.mark.parametrize("task", TASK_NAMES)
def test_answers_vary_in_wording(task: str) -> None:
    drawn = problems(task, "train", 0, 1000)
    openings = [problem.answer.splitlines()[0] for problem in drawn]
    assert max(map(openings.count, set(openings))) < 250


@pytest.mark.parametrize("task", TASK_NAMES)
def test_lengths_and_letters(task: str) -> None:
    for problem in problems(task, "train", 1, 2000):
        assert problem.task == task
        assert len(problem.prompt) <= 250, problem
        assert 90 <= len(problem.answer) <= 500, problem
        assert (problem.prompt + problem.answer).isascii(), problem
        assert problem.answer == problem.answer.strip(), problem
        assert "{" not in problem.prompt or task == "editing", problem


@pytest.mark.parametrize("task", TASK_NAMES)
def test_most_answers_are_of_middle_length(task: str) -> None:
    lengths = [len(problem.answer) for problem in problems(task, "train", 2, 1000)]
    assert sum(100 <= length <= 350 for length in lengths) > 800


def test_score_keeps_the_order() -> None:
    drawn = [problems(task, "test", 5, 1)[0] for task in TASK_NAMES] * 2
    texts = [problem.answer for problem in drawn[:5]] + ["no"] * 5
    assert score(drawn, texts) == [True] * 5 + [False] * 5
    assert score([], []) == []


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="task 'sums' is unknown: use one of word-problems, "):
        problems("sums", "train", 0, 1)
    with pytest.raises(InputError, match="split 'dev' is unknown"):
        problems("editing", "dev", 0, 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="count is -1"):
        problems("editing", "train", 0, -1)
    with pytest.raises(ValueError, match="1 problems but 0 texts"):
        score(problems("editing", "train", 0, 1), [])
