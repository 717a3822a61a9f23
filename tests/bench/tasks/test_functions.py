"""Functions: the worked answers against their tests, and answers that are nearly right."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bench.tasks import Problem, is_correct, problems, score


@pytest.fixture(scope="module")
def drawn() -> list[Problem]:
    return [problem for seed in range(100) for problem in problems("functions", "train", seed, 10)]


def run(code: str, calls: list[str]) -> list[str]:
    """The results in this process: the code is known here."""
    names: dict[str, Any] = {}
    exec(code, names)
    return [repr(eval(call, names)) for call in calls]


def test_worked_answers_pass_their_tests(drawn: list[Problem]) -> None:
    """The code is written apart from the functions that computed the results."""
    for problem in drawn:
        assert run(problem.answer, problem.check["calls"]) == problem.check["results"], problem


def test_tests_tell_results_apart(drawn: list[Problem]) -> None:
    constant = [problem for problem in drawn if len(set(problem.check["results"])) == 1]
    assert len(constant) < 0.06 * len(drawn)


def mutants(code: str) -> list[str]:
    """The code with one number off by one or one operator exchanged, in lines that are no comment."""
    swaps = {
        " > ": " >= ",
        " < ": " <= ",
        " % 2 == 0": " % 2 == 1",
        ".upper()": ".lower()",
        " not in ": " in ",
    }
    lines = code.splitlines()
    changed = []
    for place, line in enumerate(lines[1:], 1):
        if line.lstrip().startswith(("#", '"')):
            continue
        wrong = [line.replace(right, other, 1) for right, other in swaps.items() if right in line]
        for found in re.finditer(r"(?<![\w'])[2-9]\d*(?![\w'])", line):
            wrong.append(f"{line[: found.start()]}{int(found[0]) + 1}{line[found.end() :]}")
        changed += ["\n".join([*lines[:place], other, *lines[place + 1 :]]) for other in wrong]
    return changed


def test_a_wrong_constant_or_operator_changes_a_result(drawn: list[Problem]) -> None:
    """But where it makes no difference, as in a case that is never reached."""
    passed = [
        run(code, problem.check["calls"]) == problem.check["results"]
        for problem in drawn
        for code in mutants(problem.answer)
    ]
    assert len(passed) > 1000
    assert sum(passed) < 0.06 * len(passed)


def test_a_wrong_constant_or_operator_is_wrong_when_scored(drawn: list[Problem]) -> None:
    changed = [(problem, code) for problem in drawn for code in mutants(problem.answer)[:1]][:50]
    results = score([problem for problem, _ in changed], [code for _, code in changed])
    assert sum(results) < 0.12 * len(changed)


def test_a_fence_is_taken_off(drawn: list[Problem]) -> None:
    problem = drawn[0]
    assert is_correct(problem, f"Here it is:\n```python\n{problem.answer}\n```\nDone.")
    assert not is_correct(problem, f"Here it is:\n{problem.answer}")


def test_another_name_is_wrong(drawn: list[Problem]) -> None:
    problem = drawn[0]
    assert not is_correct(problem, problem.answer.replace("def ", "def my_"))
