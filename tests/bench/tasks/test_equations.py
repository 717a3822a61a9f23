"""The solutions, put into the equations as the prompt and the steps write them."""

from __future__ import annotations

import ast
import operator
import re
from fractions import Fraction

import pytest

from bench.tasks import Problem, is_correct, problems

SIDE = r"-?[\da-z(][\da-z()+\-*/ ]*"
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value(side: str, unknown: str, at: int) -> Fraction:
    """A side of an equation, such as "3(x + 4) - 2", at a number."""
    product = re.sub(rf"(\d)(?=[{unknown}(])", r"\1*", side)
    return _value(ast.parse(product.strip(), mode="eval").body, at)


def _value(node: ast.expr, at: int) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.Name():
            return Fraction(at)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, at)
        case ast.BinOp(left=left, op=sign, right=right):
            return OPERATIONS[type(sign)](_value(left, at), _value(right, at))
    raise ValueError(ast.dump(node))


def equations(text: str, unknown: str) -> list[tuple[str, str]]:
    """All "left = right" in a text."""
    term = rf"(?:\d+\({unknown} [-+] \d+\)|\d*{unknown}\b|\d+)"
    side = rf"-?{term}(?: [-+*/] {term})*"
    return re.findall(rf"(?<![\w(])({side}) = ({side})", text)


@pytest.fixture(scope="module")
def drawn() -> list[Problem]:
    return [problem for seed in range(100) for problem in problems("equations", "train", seed, 20)]


def test_the_solution_solves_the_prompt(drawn: list[Problem]) -> None:
    for problem in drawn:
        unknown = problem.check["unknown"]
        solution = int(re.findall(r"-?\d+", problem.answer)[-1])
        found = equations(problem.prompt, unknown)
        assert len(found) == 1, problem
        left, right = found[0]
        assert value(left, unknown, solution) == value(right, unknown, solution), problem
        assert value(left, unknown, solution + 1) != value(right, unknown, solution + 1), problem


def test_every_step_holds(drawn: list[Problem]) -> None:
    for problem in drawn:
        unknown = problem.check["unknown"]
        solution = int(re.findall(r"-?\d+", problem.answer)[-1])
        found = equations(problem.answer, unknown)
        assert len(found) == problem.answer.count("="), problem
        for left, right in found:
            assert value(left, unknown, solution) == value(right, unknown, solution), (problem, left, right)


def test_forms(drawn: list[Problem]) -> None:
    """Brackets, the unknown on both sides, negative solutions: none is rare."""
    both = [p for p in drawn if all(p.check["unknown"] in s for s in equations(p.prompt, p.check["unknown"])[0])]
    for part in (both, [p for p in drawn if "(" in p.prompt], [p for p in drawn if p.check["solution"] < 0]):
        assert 0.1 < len(part) / len(drawn) < 0.7


def test_numbers_stay_small(drawn: list[Problem]) -> None:
    for problem in drawn:
        assert max(int(number) for number in re.findall(r"\d+", problem.answer)) < 300, problem


def test_a_wrong_solution_is_wrong(drawn: list[Problem]) -> None:
    for problem in drawn[:500]:
        *steps, last = problem.answer.splitlines()
        solution = problem.check["solution"]
        for wrong in (solution + 1, solution - 1, solution * 10 + 1, -solution or 5):
            text = re.sub(r"-?\d+", str(wrong), last)
            assert not is_correct(problem, "\n".join([*steps, text])), problem


def test_the_statement_comes_last(drawn: list[Problem]) -> None:
    problem = drawn[0]
    stated = f"{problem.check['unknown']} = {problem.check['solution']}"
    assert is_correct(problem, stated)
    assert is_correct(problem, f"Step one.\nDivide by 3: 2 + 3 = 5, so {stated}.")
    assert is_correct(problem, f"So {stated}.\n")
    assert not is_correct(problem, f"{stated} or so")
    assert not is_correct(problem, f"3{stated}")
    assert not is_correct(problem, f"{stated}.5")


T_IS_7 = Problem("equations", "", "", {"unknown": "t", "solution": 7}, "")


@pytest.mark.parametrize(
    "text",
    ["t = 7", "t=7", "7 = t", "**t = 7**", "So **t = 7**.", "**Answer:** t = 7", "`t = 7`", "$t = 7$."],
)
def test_right_statements(text: str) -> None:
    assert is_correct(T_IS_7, text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "-t = 7",
            "- t = 7",
            "2 * t = 7",
            "2t = 7",
            "1/t = 7",
            "y - t = 7",
            "y t = 7",
            "2 + 7 = t",
            "-7 = t",
            "2**t = 7",
        ),
        *(
            "not t = 7",
            "So not t = 7",
            "minus t = 7",
            "t = 8 or t = 7",
            "t = 7 or t = 8",
            "t = 7, or t = 8",
            "t = 7. No, t = 8",
        ),
        *(
            "t = 7.5",
            "t = 7,5",
            "t = 7/2",
            "t = 7 * 2",
            "t = 7t",
            "s = 7",
            "t = ７",
            "t = " + "9" * 5000,
            "t = 7 and more",
        ),
    ],
)
def test_wrong_statements(text: str) -> None:
    assert not is_correct(T_IS_7, text)
