"""Functions: the worked answers against their tests, and answers that are nearly right."""

from __future__ import annotations

import ast
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


def test_results_are_all_equal_only_where_the_function_is_constant(drawn: list[Problem]) -> None:
    """It may also be constant on whole numbers, or on what a filter lets through."""
    for problem in drawn:
        if len(set(problem.check["results"])) == 1:
            name, _, arguments = problem.check["calls"][0].rstrip(")").partition("(")
            given = ast.literal_eval(f"({arguments},)")
            more = range(-60, 60) if isinstance(given[0], int) else ()
            calls = [f"{name}({', '.join([str(number)] * len(given))})" for number in more]
            assert len(set(run(problem.answer, [*calls, *problem.check["calls"]]))) == 1, problem


def _pipelines(drawn: list[Problem]) -> list[tuple[Problem, list[Any]]]:
    """Problems about collections and texts, with the arguments of their calls."""
    found = []
    for problem in drawn:
        if re.search(r" (?:numbers|words|characters|values) (?:in|of) .*that", problem.prompt):
            found.append((problem, [ast.literal_eval(call[call.index("(") :]) for call in problem.check["calls"]]))
    return found


def test_the_empty_case_is_called(drawn: list[Problem]) -> None:
    pipelines = _pipelines(drawn)
    assert len(pipelines) > 200
    assert [problem for problem, arguments in pipelines if all(arguments)] == []


def test_filters_are_met_from_both_sides(drawn: list[Problem]) -> None:
    """Where things are counted: some are, and some are not."""
    counts = [pair for pair in _pipelines(drawn) if "returns the number of the" in pair[0].prompt]
    assert len(counts) > 30
    for problem, arguments in counts:
        results = map(int, problem.check["results"])
        assert any(0 < count < len(argument) for count, argument in zip(results, arguments, strict=True)), problem


def test_sorting_makes_a_difference(drawn: list[Problem]) -> None:
    is_sorted = [p for p in drawn if "returns a sorted list" in p.prompt]
    assert len(is_sorted) > 10
    idle = [p for p in is_sorted if run(p.answer.replace("sorted(", "list("), p.check["calls"]) == p.check["results"]]
    assert len(idle) < 0.15 * len(is_sorted), idle  # Where each is cut to nothing.


def test_capital_vowels_are_ruled_out_in_words(drawn: list[Problem]) -> None:
    assert [p for p in drawn if re.search(r"(?<!lower-case )vowels", p.prompt)] == []


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


def test_scoring_agrees_with_running_here(drawn: list[Problem]) -> None:
    changed = [(problem, code) for problem in drawn for code in mutants(problem.answer)[:1]][:50]
    results = score([problem for problem, _ in changed], [code for _, code in changed])
    assert results == [run(code, problem.check["calls"]) == problem.check["results"] for problem, code in changed]
    assert True in results
    assert False in results


def test_a_fence_is_taken_off(drawn: list[Problem]) -> None:
    problem = drawn[0]
    assert is_correct(problem, f"Here it is:\n```python\n{problem.answer}\n```\nDone.")
    assert is_correct(problem, f"Try:\n\n``` py\n{problem.answer}\n```\n\nUse it:\n```py\nprint(1)\n```")
    assert is_correct(problem, f"Install:\n```sh\nls\n```\n```Python3\n{problem.answer}")
    assert is_correct(problem, f"So:\n```python\n{problem.answer}\n```\n".replace("\n", "\r\n"))
    assert is_correct(problem, problem.answer.replace("\n", "\r\n"))
    assert not is_correct(problem, f"Here it is:\n{problem.answer}")


def test_another_name_is_wrong(drawn: list[Problem]) -> None:
    problem = drawn[0]
    assert not is_correct(problem, problem.answer.replace("def ", "def my_"))
