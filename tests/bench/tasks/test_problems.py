"""What holds for every task: worked answers score, draws repeat, splits are disjoint, lengths are kept."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench.tasks import TASK_NAMES, Problem, is_correct, mixed_problems, problems, score
from specdiff_jax.cli.bench import bench
from specdiff_jax.errors import InputError
from specdiff_jax.prompts import read_prompts

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


@pytest.mark.parametrize("task", TASK_NAMES)
@settings(max_examples=50, deadline=None)
@given(text=st.text())
def test_any_text_can_be_scored(task: str, text: str) -> None:
    assert is_correct(_form_of_its_own(task), text) is False


@pytest.mark.parametrize("task", TASK_NAMES)
@pytest.mark.parametrize(
    "form", ["{}", "x = {}", "The answer is {}", "[{}]", '{{"a": {}}}', "def f(x):\n    return {}"]
)
def test_long_numbers_can_be_scored(task: str, form: str) -> None:
    problem = _form_of_its_own(task)
    assert is_correct(problem, form.format("9" * 5000)) is False


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


def _calculation(problem: Problem) -> object:
    return re.findall(r"(\d+) ([-+*/]) (\d+) =", problem.answer)


def _equation(problem: Problem) -> object:
    unknown = problem.check["unknown"]
    term = rf"(?:\d+\({unknown} [-+] \d+\)|\d*{unknown}\b|\d+)"
    side = rf"-?{term}(?: [-+] {term})*"
    found = re.search(rf"(?<![\w(])({side}) = ({side})", problem.prompt)
    assert found, problem
    signed = (re.sub(r" ([-+]) ", r" \1", text.replace(unknown, "x")).split() for text in found.groups())
    return sorted(sorted(term if term[0] in "-+" else f"+{term}" for term in terms) for terms in signed)


def _specification(problem: Problem) -> object:
    signature = re.search(r"\w+_\w+\(([\w, ]+)\)", problem.prompt)
    assert signature, problem
    text = re.sub(r"^.*?(?:, which|: it|It| that|so that it)\b", "", problem.prompt)
    text = re.sub(r"^ it\b", "", text).replace("the number of steps", "how many times it did so")
    before = "adds and by dictionary else from if in multiplies of otherwise puts returns subtracts takes to until"
    for place, name in enumerate(signature[1].split(", ")):
        text = re.sub(rf"\b({'|'.join(before.split())}) {name}\b", rf"\1 #{place}", text)
    return text


def _values(problem: Problem) -> object:
    return re.findall(r"\[[^\]]*\]|\{[^}]*\}", problem.answer)


def _constraints(problem: Problem) -> object:
    place = r"\b(?:on the subject of|about|[Dd]escribe|on|for) the (\w+)"
    subject = next(word for word in re.findall(place, problem.prompt) if word != "next")
    constraints = [
        sorted((key, sorted(value) if isinstance(value, list) else value) for key, value in constraint.items())
        for constraint in problem.check["constraints"]
    ]
    return subject, sorted(map(repr, constraints))


CANONICAL = {
    "word-problems": _calculation,
    "equations": _equation,
    "functions": _specification,
    "editing": _values,
    "formatting": _constraints,
}


@pytest.mark.parametrize("draws", [50_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", TASK_NAMES)
def test_what_is_asked_is_in_one_split_only(task: str, draws: int) -> None:
    """What is asked is read here from the prompt, the check or the steps, and not from the key."""
    canonical = CANONICAL[task]
    tested = problems(task, "test", 0, 2000)
    assert len({problem.key for problem in tested}) == 2000
    trained = {repr(canonical(problem)) for problem in problems(task, "train", 0, draws)}
    assert [problem for problem in tested if repr(canonical(problem)) in trained] == []


@pytest.mark.parametrize("task", TASK_NAMES)
def test_prompts_vary(task: str) -> None:
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
    with pytest.raises(InputError, match="count is 5001: the test split of a task gives at most 5000"):
        problems("editing", "test", 0, 5001)
    with pytest.raises(ValueError, match="1 problems but 0 texts"):
        score(problems("editing", "train", 0, 1), [])


def test_tasks_take_turns() -> None:
    mixed = mixed_problems("test", 3, 2)
    assert [problem.task for problem in mixed] == [*TASK_NAMES, *TASK_NAMES]
    assert mixed[1::5] == problems("equations", "test", 3, 2)


def test_problems_are_printed_as_a_prompts_file(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(bench, ["prompts", "--problems", "2", "--seed", "5"])
    file = tmp_path / "prompts.jsonl"
    file.write_text(outcome.stdout, encoding="utf-8")
    drawn = mixed_problems("train", 5, 2)
    assert [entry.prompt for entry in read_prompts(file)] == [problem.prompt for problem in drawn]
