"""Linear equations in one unknown, solved step by step; they stand in for MATH.

Coefficients are positive, solutions are whole numbers. The last line of the worked answer states the unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from bench.tasks.arithmetic import addition, subtraction
from bench.tasks.problem import Problem
from bench.tasks.statements import last_statement

NAME = "equations"

_UNKNOWNS = "xyzntkmpw"

_LEADING_WORDS = r"(?:(?!(?:not|never|or|minus|twice)\b)[A-Za-z]{2,} )*"

_PROMPTS = (
    "Solve for {v}: {e}",
    "Solve {e} for {v}.",
    "Find {v} if {e}.",
    "What is {v} when {e}?",
    "Work out {v} from {e}.",
    "Given {e}, find {v}.",
    "Solve the equation {e}.",
    "Which number {v} makes {e} true?",
    "Determine {v}, where {e}.",
    "Please solve {e} and show each step.",
    "If {e}, what is {v}?",
    "Show how to get {v} from {e}.",
)
_OPENINGS = (
    "Start from {e}.",
    "We have {e}.",
    "The equation is {e}.",
    "Begin with {e}.",
    "Given: {e}.",
    "Take {e}.",
    "Look at {e}.",
)
_SUBTRACT = (
    "Subtract {b} from both sides",
    "Take {b} away on each side",
    "Remove {b} from both sides",
    "Move {b} to the other side",
    "Get rid of the {b}",
)
_ADD = (
    "Add {b} to both sides",
    "Put {b} on each side",
    "Adding {b} on both sides",
    "Move the minus {b} over",
    "Undo the minus {b}",
)
_DIVIDE = (
    "Divide both sides by {a}",
    "Divide by {a}",
    "Split both sides by {a}",
    "Dividing by {a} on each side",
    "Undo the factor {a}",
)
_BRING = (
    "Bring {a}{v} to the right",
    "Add {a}{v} to both sides",
    "Move {a}{v} over",
    "Undo the minus {a}{v}",
)
_MULTIPLY_OUT = (
    "Multiply out the bracket",
    "Open the bracket",
    "Expand the left side",
    "Write the bracket out",
    "Multiply both terms by {a}",
)
_COLLECT = (
    "Collect the terms in {v}",
    "Put the {v} terms together",
    "Combine {a}{v} and {c}{v}",
    "Add up the {v} terms",
    "Count the {v} terms",
)
_THEN = (
    ": {c}, so {e}.",
    ": {c}, which gives {e}.",
    " and get {e}, as {c}.",
    ", {c}. Now {e}.",
    ". As {c}, we have {e}.",
)
_THEN_PLAIN = (": {e}.", ", so {e}.", " and get {e}.", ". Now {e}.", ", which gives {e}.")
_LAST_LINES = (
    "{v} = {x}",
    "So {v} = {x}.",
    "The solution is {v} = {x}.",
    "Therefore {v} = {x}.",
    "Thus {v} = {x}.",
    "We find {v} = {x}.",
    "Solution: {v} = {x}",
    "This means {v} = {x}.",
)


def generate(rng: Random) -> Problem:
    """An equation with the unknown on one side or on both, with or without a bracket."""
    v = rng.choice(_UNKNOWNS)
    # Large negative sums are hard for a small model, so a negative solution goes with small coefficients.
    x = rng.randint(-6, -1) if rng.random() < 0.2 else rng.randint(0, 12)
    largest = 4 if x < 0 else 9
    equation, steps = rng.choice(_FORMS)(rng, v, x, largest)
    prompt = rng.choice(_PROMPTS).format(v=v, e=equation)
    lines = [rng.choice(_OPENINGS).format(e=equation), *steps, rng.choice(_LAST_LINES).format(v=v, x=x)]
    return Problem(NAME, prompt, "\n".join(lines), {"unknown": v, "solution": x}, _key(equation, v))


def _key(equation: str, v: str) -> str:
    """The equation without its letter and the order of its sides and terms."""
    sides = equation.replace(v, "x").split(" = ")
    return " = ".join(sorted(" ".join(sorted(side.split())) for side in sides))


def is_correct(problem: Problem, text: str) -> bool:
    """Whether the last clause of `text` is "x = 7" or "7 = x", after nothing but words that do not deny it."""
    v = problem.check["unknown"]
    statement = last_statement(text, ends=".!?;:,")
    found = re.fullmatch(rf"{_LEADING_WORDS}(?:{v} ?= ?(-?\d+)|(-?\d+) ?= ?{v})", statement)
    # Compared as text: a number may be too long for Python to read.
    return found is not None and (found[1] or found[2]) == str(problem.check["solution"])


def _one_side(rng: Random, v: str, x: int, largest: int) -> tuple[str, list[str]]:
    """`ax + b = c`, also with the sides or the terms exchanged."""
    a, b = rng.randint(2, largest), _constant(rng)
    total = a * x + b
    left = _linear(a, v, b)
    if b > 0 and rng.random() < 0.3:
        left = f"{b} + {a}{v}"
    equation = f"{total} = {left}" if rng.random() < 0.25 else f"{left} = {total}"
    return equation, [_move(rng, a, v, b, total), *_divide(rng, a, v, a * x)]


def _taken_away(rng: Random, v: str, x: int, largest: int) -> tuple[str, list[str]]:
    """`b - ax = c`."""
    a = rng.randint(2, largest)
    c = rng.randint(1, 9)
    b = a * x + c
    if b < 1:
        return _one_side(rng, v, x, largest)
    moved = _step(rng, _BRING, "", f"{b} = {_linear(a, v, c)}", a=a, v=v)
    return f"{b} - {a}{v} = {c}", [moved, _move(rng, a, v, c, b), *_divide(rng, a, v, a * x)]


def _two_terms(rng: Random, v: str, x: int, largest: int) -> tuple[str, list[str]]:
    """`ax + cx + b = d`."""
    a, c = rng.randint(2, largest - 2), rng.randint(2, 7)
    b = _constant(rng)
    both = a + c
    total = both * x + b
    shown = f"{a}{v} + {c}{v} {'+' if b > 0 else '-'} {abs(b)}"
    collected = _step(rng, _COLLECT, f"{a} + {c} = {both}", f"{_linear(both, v, b)} = {total}", a=a, c=c, v=v)
    return f"{shown} = {total}", [collected, _move(rng, both, v, b, total), *_divide(rng, both, v, both * x)]


def _both_sides(rng: Random, v: str, x: int, largest: int) -> tuple[str, list[str]]:
    """`ax + b = cx + d`, `a > c`."""
    c = rng.randint(2, 7)
    a = c + rng.randint(1, largest - 1)
    b = _constant(rng)
    d = (a - c) * x + b
    left = _linear(a, v, b)
    return f"{left} = {_linear(c, v, d)}", _solve_both(rng, v, x, a, b, c, d)


def _bracket(rng: Random, v: str, x: int, largest: int) -> tuple[str, list[str]]:
    """`a(x + b) = c`, solved by dividing first or by multiplying out, also with a further constant."""
    a, b = rng.randint(2, largest), _constant(rng, 9)
    e = _constant(rng) if rng.random() < 0.6 else 0
    right = a * (x + b)
    bracket = f"{a}({_linear(1, v, b)})"
    shown = f"{bracket} {'+' if e > 0 else '-'} {abs(e)}" if e else bracket
    steps = [_shift(rng, e, right + e, f"{bracket} = {right}")] if e else []
    if rng.random() < 0.6:
        divided = f"{right} / {a} = {right // a}"
        steps.append(_step(rng, _DIVIDE, divided, f"{_linear(1, v, b)} = {x + b}", a=a))
        steps.append(_move(rng, 1, v, b, x + b))
    else:
        steps.append(_multiply_out(rng, a, v, b, str(right)))
        steps.append(_move(rng, a, v, a * b, right))
        steps += _divide(rng, a, v, a * x)
    return f"{shown} = {right + e}", steps


def _bracket_both_sides(rng: Random, v: str, x: int, largest: int) -> tuple[str, list[str]]:
    """`a(x + b) = cx + d`, `a > c`."""
    c = rng.randint(2, 4)
    a = c + rng.randint(1, max(1, largest - c))
    b = _constant(rng, 5)
    d = (a - c) * x + a * b
    right = _linear(c, v, d)
    steps = [_multiply_out(rng, a, v, b, right), *_solve_both(rng, v, x, a, a * b, c, d)]
    return f"{a}({_linear(1, v, b)}) = {right}", steps


def _solve_both(rng: Random, v: str, x: int, a: int, b: int, c: int, d: int) -> list[str]:
    """The steps from `ax + b = cx + d`: the unknown first or the constant first."""
    rest = a - c
    counted = f"{a} - {c} = {rest}"
    if rng.random() < 0.5:
        first = _step(rng, _SUBTRACT, counted, f"{_linear(rest, v, b)} = {d}", b=f"{c}{v}")
        second = _move(rng, rest, v, b, d)
    else:
        first = _shift(rng, b, d, f"{a}{v} = {_linear(c, v, d - b)}")
        second = _step(rng, _SUBTRACT, counted, f"{_linear(rest, v, 0)} = {d - b}", b=f"{c}{v}")
    return [first, second, *_divide(rng, rest, v, rest * x)]


def _multiply_out(rng: Random, a: int, v: str, b: int, right: str) -> str:
    return _step(rng, _MULTIPLY_OUT, f"{a} * {abs(b)} = {a * abs(b)}", f"{_linear(a, v, a * b)} = {right}", a=a)


def _move(rng: Random, a: int, v: str, b: int, total: int) -> str:
    """The step from `ax + b = total` to `ax = total - b`."""
    return _shift(rng, b, total, f"{_linear(a, v, 0)} = {total - b}")


def _shift(rng: Random, b: int, total: int, equation: str) -> str:
    """The step that takes `b` from both sides, of which one is `total`."""
    if b > 0:
        calculation = f"{total} - {b} = {total - b}" if total < b else subtraction(rng, total, b)
        return _step(rng, _SUBTRACT, calculation, equation, b=b)
    calculation = f"{total} + {-b} = {total - b}" if total < 0 else addition(rng, total, -b)
    return _step(rng, _ADD, calculation, equation, b=-b)


def _divide(rng: Random, a: int, v: str, right: int) -> list[str]:
    """The step from `ax = right` to `x`, where there is anything to divide."""
    if a == 1:
        return []
    return [_step(rng, _DIVIDE, "", f"{right} / {a} = {right // a}", a=a)]


def _step(rng: Random, phrases: Sequence[str], calculation: str, equation: str, **values: object) -> str:
    ending = rng.choice(_THEN if calculation else _THEN_PLAIN)
    return rng.choice(phrases).format(**values) + ending.format(c=calculation, e=equation)


def _constant(rng: Random, largest: int = 20) -> int:
    """A number that is not 0, positive twice as often as negative."""
    size = rng.randint(1, largest)
    return size if rng.random() < 0.67 else -size


def _linear(a: int, v: str, b: int) -> str:
    """`ax + b` as it is written."""
    term = v if a == 1 else f"{a}{v}"
    if not b:
        return term
    return f"{term} + {b}" if b > 0 else f"{term} - {-b}"


_FORMS = (_one_side, _taken_away, _two_terms, _both_sides, _both_sides, _bracket, _bracket, _bracket_both_sides)
