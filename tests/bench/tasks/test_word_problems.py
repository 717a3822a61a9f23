"""The arithmetic of the worked answers, computed again from their text."""

from __future__ import annotations

import operator
import re

import pytest

from bench.tasks import Problem, is_correct, problems

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (-?\d+)")


@pytest.fixture(scope="module")
def drawn() -> list[Problem]:
    return [problem for seed in range(100) for problem in problems("word-problems", "train", seed, 20)]


def test_every_equation_holds(drawn: list[Problem]) -> None:
    for problem in drawn:
        found = EQUATION.findall(problem.answer)
        assert len(found) == problem.answer.count("="), problem
        for left, sign, right, result in found:
            assert OPERATIONS[sign](int(left), int(right)) == int(result), problem
            assert sign != "/" or int(left) % int(right) == 0, problem


def test_numbers_come_from_the_story_or_from_earlier_steps(drawn: list[Problem]) -> None:
    for problem in drawn:
        known = {int(number) for number in re.findall(r"\d+", problem.prompt)}
        for left, _, right, result in EQUATION.findall(problem.answer):
            for number in (int(left), int(right)):
                parts = {part for whole in known for part in (whole, whole - whole % 10, whole % 10)}
                assert number in parts, problem
            known |= {int(left), int(right), int(result)}


def test_the_story_is_used_up(drawn: list[Problem]) -> None:
    """Every number of the prompt, or its parts, enters the calculation."""
    for problem in drawn:
        used = {int(number) for equation in EQUATION.findall(problem.answer) for number in (equation[0], equation[2])}
        for text in re.findall(r"\d+", problem.prompt):
            number = int(text)
            assert number in used or {number - number % 10, number % 10} <= used, problem


def test_the_last_equation_gives_the_answer(drawn: list[Problem]) -> None:
    for problem in drawn:
        last = EQUATION.findall(problem.answer)[-1][3]
        assert re.search(rf"\b{last}\b", problem.answer.splitlines()[-1]), problem


def test_numbers_stay_small(drawn: list[Problem]) -> None:
    for problem in drawn:
        assert max(int(number) for number in re.findall(r"\d+", problem.answer)) < 1000
        for left, sign, right, _ in EQUATION.findall(problem.answer):
            digits = sorted((int(left), int(right)))
            assert sign != "*" or (digits[0] < 10 and (digits[1] < 11 or digits[1] % 10 == 0)), problem


def test_steps(drawn: list[Problem]) -> None:
    assert {sum("=" in line for line in problem.answer.splitlines()) for problem in drawn} == {2, 3, 4}


def test_carries_are_split(drawn: list[Problem]) -> None:
    for problem in drawn:
        for left, sign, right, _ in EQUATION.findall(problem.answer):
            a, b = int(left), int(right)
            if sign == "+" and b > 9 and b % 10:
                assert a % 10 + b % 10 < 10, problem
            if sign == "-" and b > 9 and b % 10:
                assert a % 10 >= b % 10, problem


@pytest.mark.parametrize("step", [-10, -1, 1, 10])
def test_a_wrong_number_is_wrong(drawn: list[Problem], step: int) -> None:
    for problem in drawn[:500]:
        *steps, last = problem.answer.splitlines()
        wrong = re.sub(r"\d+", lambda number: str(int(number[0]) + step), last)
        assert not is_correct(problem, "\n".join([*steps, wrong])), problem


def test_only_the_last_line_counts(drawn: list[Problem]) -> None:
    problem = drawn[0]
    result = problem.check["result"]
    assert is_correct(problem, f"the answer is {result}")
    assert is_correct(problem, f"no steps\nANSWER: {result} {problem.check['unit']}\n\n")
    assert not is_correct(problem, f"{problem.answer}\nor not")
    assert not is_correct(problem, f"the answer is {result}0")
    assert not is_correct(problem, f"the answer is -{result}")
    assert not is_correct(problem, f"{result} and so on")


TEN = Problem("word-problems", "", "", {"result": 10, "unit": "pears"}, "")


@pytest.mark.parametrize(
    "text",
    [
        *("The answer is 10.", "The answer is $10.", "The answer is: 10", "**10**", "10", "The answer is **10**."),
        *(
            "**Answer:** 10 pears",
            "Answer: `10`",
            "3 + 7 = 10. So the answer is 10.",
            "The answer is 8. No: the answer is 10!",
        ),
    ],
)
def test_right_statements(text: str) -> None:
    assert is_correct(TEN, text)


@pytest.mark.parametrize(
    "number",
    [
        *(
            "10.5",
            "10,000",
            "10/7",
            "10 * 2 = 20",
            "10 or 11.",
            "10. No: the answer is 11.",
            "10%",
            "10 dozen",
            "10 hundred",
        ),
        *("-10", "not 10", "1 0", "100", "10e3", "10**2", "1**0", "1$0", "１０", "9" * 5000, "11 or the answer is 10"),
    ],
)
def test_wrong_statements(number: str) -> None:
    assert not is_correct(TEN, f"The answer is {number}")
    assert not is_correct(TEN, f"3 + 7 = 10. Answer: {number}")
