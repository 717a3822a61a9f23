"""Arithmetic word problems of two to four steps; they stand in for GSM8K.

The worked answer writes every step as an equation. Its last sentence gives the result after the word "answer".
"""

from __future__ import annotations

import re
from random import Random
from typing import NamedTuple

from bench.tasks.arithmetic import addition, multiplication, subtraction
from bench.tasks.problem import Problem
from bench.tasks.statements import last_statement
from bench.tasks.wording import PEOPLE, THINGS

NAME = "word-problems"

_RESULT = re.compile(r"(?:\D*\banswer(?: is:?|:)\s*)?(-?\d+)(?: ([a-z]+))?", re.IGNORECASE)
_DENIED = re.compile(r"\b(?:not|never|or)\b", re.IGNORECASE)

_CALCULATION = re.compile(r"\d+ [-+*/] \d+")

_LAST_LINES = (
    "The answer is {r}.",
    "Answer: {r}",
    "So the answer is {r}.",
    "So the answer is {r} {unit}.",
    "The final answer is {r}.",
    "Final answer: {r}",
    "Hence the answer is {r} {unit}.",
    "Answer: {r} {unit}",
    "That means the answer is {r}.",
)

_OPENINGS = (
    "Let us go through the story step by step.",
    "We work this out in the order of the story.",
    "Take it one step at a time and keep count.",
    "Here is how the number of {unit} is found.",
    "We are asked for a number of {unit}.",
    "We count the {unit} step by step.",
    "To find the {unit}, look at each part in turn.",
    "Write down every step until the {unit} are known.",
)

_CONTAINERS = ("boxes", "bags", "packs", "crates", "baskets", "trays", "sacks", "tins")

_START = (
    "{n} has {a} {o}.",
    "{n} starts with {a} {o}.",
    "There are {a} {o} on the table of {n}.",
    "{n} owns {a} {o}.",
    "In the morning {n} has {a} {o}.",
    "{n} collected {a} {o} last week.",
)
_GAIN = (
    "{P} buys {b} more.",
    "{P} finds {b} more {o}.",
    "{m} gives {n} {b} {o}.",
    "{P} gets {b} {o} from {m}.",
    "Then {b} more {o} arrive.",
    "Later {p} adds {b}.",
)
_GAIN_STEPS = (
    "Adding {b} to that gives {c}.",
    "With {b} more {o} we get {c}.",
    "Now there are {c} {o}.",
    "So {n} then has {c}.",
    "The {b} new {o} make it {c}.",
    "After this gain it is {c}.",
    "That goes up by {b}: {c}.",
)
_LOSS = (
    "{P} gives {b} {o} to {m}.",
    "{P} loses {b} of them.",
    "{P} sells {b} {o}.",
    "Then {m} takes {b} of them.",
    "Later {b} {o} get lost.",
    "{P} throws {b} away.",
)
_LOSS_STEPS = (
    "Taking away {b} leaves {c}.",
    "Without those {b} {o}: {c}.",
    "This leaves {c} {o}.",
    "Now {n} is down to {c}.",
    "Minus the {b} that are gone: {c}.",
    "After this loss it is {c}.",
    "That drops by {b}: {c}.",
)
_PACKS = (
    "{P} buys {k} {box} of {s} {o} each.",
    "{P} gets {k} {box} with {s} {o} in each.",
    "{m} brings {k} {box} that hold {s} {o} each.",
)
_PACKS_SOLD = (
    "{P} sells {k} {box} of {s} {o} each.",
    "{P} gives away {k} {box} with {s} {o} in each.",
    "{m} takes {k} {box} that hold {s} {o} each.",
)
_PACKS_STEPS = (
    "The {box} hold {c} {o}.",
    "{k} {box} of {s} are {c}.",
    "In the {box} there are {c}.",
    "First count the {box}: {c}.",
    "{k} times {s} {o}: {c}.",
)
_TIMES = (
    "Then the number of {o} becomes {k} times as large.",
    "After a good week {p} has {k} times as many.",
    "Then {p} grows the pile to {k} times its size.",
)
_TIMES_STEPS = (
    "{k} times as many is {c}.",
    "The pile grows to {c}.",
    "Multiply that by {k}: {c}.",
    "Taking it {k} times: {c}.",
    "Now {n} has {c} {o}.",
)
_SHARE = (
    "{P} puts them all into {k} {box}, the same number in each. How many {o} are in one of the {box}?",
    "{P} shares all of them equally among {k} friends. How many {o} does each friend get?",
    "Then {p} splits them evenly into {k} groups. How many {o} are in each group?",
)
_SHARE_STEPS = (
    "Each one gets {c}.",
    "Split in {k} equal parts: {c}.",
    "Dividing by {k} gives {c}.",
    "One share is {c} {o}.",
    "Sharing among {k}: {c}.",
)
_HOW_MANY = (
    "How many {o} does {n} have now?",
    "How many {o} are there in the end?",
    "How many does {p} have at the end?",
    "What is the number of {o} now?",
)

_BUY_TWO = (
    "{n} buys {k} {o} for {s} dollars each and {j} {u} for {t} dollars each.",
    "At the market {n} takes {k} {o} at {s} dollars each and {j} {u} at {t} dollars each.",
    "{n} orders {k} {o} and {j} {u}. The {o} cost {s} dollars each and the {u} {t} dollars each.",
)
_BUY_ONE = (
    "{n} buys {k} {o} for {s} dollars each and pays {f} dollars for delivery.",
    "{n} orders {k} {o} at {s} dollars each. Wrapping costs {f} dollars more.",
    "A shop sells {o} for {s} dollars each. {n} takes {k} and a bag for {f} dollars.",
)
_COST_STEPS = (
    "The {o} cost {c} dollars.",
    "For the {o} that is {c}.",
    "{k} {o} come to {c}.",
    "Pay {c} for the {o}.",
    "Price of the {o}: {c}.",
)
_TOTAL_STEPS = (
    "Together that makes {c}.",
    "The total is {c}.",
    "All in all that is {c}.",
    "Add them up: {c}.",
    "The sum of both is {c}.",
    "Both parts give {c}.",
)
_CHANGE = (
    "{P} pays with {d} dollars. How much change does {p} get?",
    "How many dollars are left of {d} dollars?",
    "{P} had {d} dollars. How many dollars does {p} have left?",
)
_CHANGE_STEPS = (
    "The change is {c}.",
    "What is left: {c}.",
    "From {d} dollars: {c}.",
    "That leaves {c} dollars.",
    "Take it from {d}: {c}.",
)
_COST_QUESTIONS = (
    "How much does {p} pay in all?",
    "How many dollars is that in total?",
    "What is the total cost in dollars?",
    "What does {n} spend?",
)

_MORE = (
    "{m} has {b} more than {n}.",
    "{m} has {b} {o} more.",
    "{m} holds {b} more {o} than {n}.",
)
_FEWER = (
    "{m} has {b} fewer than {n}.",
    "{m} has {b} {o} less.",
    "{m} holds {b} fewer {o} than {n}.",
)
_AS_MANY = (
    "{q} has {k} times as many as {m}.",
    "{q} owns {k} times the number {m} has.",
    "{q} has {k} times the {o} of {m}.",
)
_PERSON_STEPS = (
    "From this {w} has {c}.",
    "For {w} that means {c}.",
    "{w} must have {c} {o}.",
    "So {w} holds {c}.",
    "Next comes {w}: {c}.",
    "Count for {w}: {c}.",
)
_TOGETHER = (
    "How many {o} do {m} and {q} have together?",
    "How many {o} is that for {m} and {q} in all?",
    "What do {m} and {q} have in total?",
)
_GAP = (
    "How many more {o} does {q} have than {m}?",
    "By how many {o} is {q} ahead of {m}?",
    "How many {o} does {m} lack to match {q}?",
)
_GAP_STEPS = (
    "The gap between them is {c}.",
    "{q} is ahead by {c}.",
    "Compare the two: {c}.",
    "The difference: {c}.",
    "So {m} lacks {c}.",
)

_WORK = (
    "A machine makes {s} {o} an hour for {k} hours, then {t} an hour for {j} hours.",
    "{n} packs {s} {o} a day for {k} days and then {t} a day for {j} days.",
    "A team checks {s} {o} an hour. After {k} hours it slows to {t} an hour for {j} hours.",
    "{n} sells {s} {o} a day for {k} days and {t} a day for {j} more days.",
)
_PART_STEPS = (
    "The {part} part gives {c}.",
    "The {part} part alone: {c}.",
    "In the {part} part: {c} {o}.",
    "For {k} at {s} each: {c}.",
    "{k} times {s} is {c}.",
)
_WORK_TOTAL = (
    "How many {o} is that in all?",
    "How many {o} are done in total?",
    "What is the total number of {o}?",
)
_WORK_LEFT = (
    "The goal is {d} {o}. How many are missing?",
    "How many of {d} {o} are still to do?",
    "Out of {d} {o}, how many are left?",
)
_LEFT_STEPS = (
    "Still missing: {c}.",
    "From the goal of {d}: {c}.",
    "That leaves {c} {o}.",
    "To reach {d} it takes {c}.",
    "Left over: {c}.",
)


class _Story(NamedTuple):
    text: list[str]
    steps: list[str]
    result: int
    unit: str


def generate(rng: Random) -> Problem:
    """A problem about a stock, a purchase, a comparison or some work."""
    story = rng.choice(_STORIES)(rng)
    lines = [*story.steps, rng.choice(_LAST_LINES).format(r=story.result, unit=story.unit)]
    if sum(map(len, lines)) < 100 or rng.random() < 0.6:
        lines.insert(0, rng.choice(_OPENINGS).format(unit=story.unit))
    key = ", ".join(_CALCULATION.findall(" ".join(story.steps)))
    return Problem(NAME, " ".join(story.text), "\n".join(lines), {"result": story.result, "unit": story.unit}, key)


def is_correct(problem: Problem, text: str) -> bool:
    """Whether the last sentence of `text` is the result, alone or after the word "answer", with or without its unit."""
    statement = last_statement(text, ends=".!?;")
    found = _RESULT.fullmatch(statement)
    if found is None or _DENIED.search(statement):
        return False
    unit = problem.check["unit"]
    # Compared as text: a number may be too long for Python to read.
    return found[1] == str(problem.check["result"]) and (found[2] or unit).lower() in (unit, unit.removesuffix("s"))


def _stock(rng: Random) -> _Story:
    """A number of things grows and shrinks, and may be shared out at the end."""
    (n, p), (m, _) = rng.sample(PEOPLE, 2)
    o = rng.choice(THINGS)
    words = {"n": n, "p": p, "P": p.capitalize(), "m": m, "o": o, "box": rng.choice(_CONTAINERS)}
    total = rng.randint(8, 80)
    text = [rng.choice(_START).format(a=total, **words)]
    steps: list[str] = []
    wanted = rng.randint(2, 4)
    while len(steps) < wanted:
        shares = [k for k in range(2, 10) if total % k == 0 and 1 < total // k < 11] if len(steps) == wanted - 1 else []
        if shares and steps:
            k = rng.choice(shares)
            text.append(rng.choice(_SHARE).format(k=k, **words))
            steps.append(rng.choice(_SHARE_STEPS).format(k=k, c=f"{total} / {k} = {total // k}", **words))
            return _Story(text, steps, total // k, o)
        event = rng.random()
        if event < 0.3 and wanted - len(steps) > 1:
            k, s = rng.randint(2, 9), rng.randint(2, 9)
            sold = total > k * s and rng.random() < 0.5
            text.append(rng.choice(_PACKS_SOLD if sold else _PACKS).format(k=k, s=s, **words))
            steps.append(rng.choice(_PACKS_STEPS).format(k=k, s=s, c=multiplication(rng, k, s), **words))
            total = _change(rng, total, k * s, sold, words, steps)
        elif event < 0.42 and total < 50:
            k = rng.randint(2, 4)
            text.append(rng.choice(_TIMES).format(k=k, **words))
            steps.append(rng.choice(_TIMES_STEPS).format(k=k, c=multiplication(rng, k, total), **words))
            total *= k
        else:
            lost = total > 9 and rng.random() < 0.55
            b = rng.randint(3, min(total - 2, 60) if lost else 60)
            text.append(rng.choice(_LOSS if lost else _GAIN).format(b=b, **words))
            total = _change(rng, total, b, lost, words, steps)
    text.append(rng.choice(_HOW_MANY).format(**words))
    return _Story(text, steps, total, o)


def _change(rng: Random, total: int, by: int, lost: bool, words: dict[str, str], steps: list[str]) -> int:
    """The total after a gain or a loss, whose step is written down."""
    calculation = subtraction(rng, total, by) if lost else addition(rng, total, by)
    steps.append(rng.choice(_LOSS_STEPS if lost else _GAIN_STEPS).format(b=by, c=calculation, **words))
    return total - by if lost else total + by


def _purchase(rng: Random) -> _Story:
    """One or two kinds of things are bought; the cost or the change is asked for."""
    n, p = rng.choice(PEOPLE)
    o, u = rng.sample(THINGS, 2)
    words = {"n": n, "p": p, "P": p.capitalize()}
    k, s = rng.randint(2, 9), rng.randint(2, 15)
    steps = [rng.choice(_COST_STEPS).format(k=k, o=o, c=multiplication(rng, k, s))]
    if rng.random() < 0.6:
        j, t = rng.randint(2, 9), rng.randint(2, 9)
        other = j * t
        text = [rng.choice(_BUY_TWO).format(k=k, s=s, j=j, t=t, o=o, u=u, **words)]
        steps.append(rng.choice(_COST_STEPS).format(k=j, o=u, c=multiplication(rng, j, t)))
    else:
        other = rng.randint(3, 25)
        text = [rng.choice(_BUY_ONE).format(k=k, s=s, f=other, o=o, **words)]
    total = k * s + other
    steps.append(rng.choice(_TOTAL_STEPS).format(c=addition(rng, k * s, other)))
    if rng.random() < 0.5:
        text.append(rng.choice(_COST_QUESTIONS).format(**words))
        return _Story(text, steps, total, "dollars")
    paid = ((total + 1) // 10 + rng.randint(1, 4)) * 10
    text.append(rng.choice(_CHANGE).format(d=paid, **words))
    steps.append(rng.choice(_CHANGE_STEPS).format(d=paid, c=subtraction(rng, paid, total)))
    return _Story(text, steps, paid - total, "dollars")


def _comparison(rng: Random) -> _Story:
    """Three people have numbers that depend on each other."""
    (n, _), (m, _), (q, _) = rng.sample(PEOPLE, 3)
    words = {"n": n, "m": m, "q": q, "o": rng.choice(THINGS)}
    first = rng.randint(8, 40)
    fewer = rng.random() < 0.5
    b = rng.randint(3, first - 4 if fewer else 30)
    second = first - b if fewer else first + b
    k = rng.randint(2, 5)
    third = k * second
    text = [
        rng.choice(_START[:2] + _START[3:4]).format(a=first, **words),
        rng.choice(_FEWER if fewer else _MORE).format(b=b, **words),
        rng.choice(_AS_MANY).format(k=k, **words),
    ]
    calculation = subtraction(rng, first, b) if fewer else addition(rng, first, b)
    steps = [
        rng.choice(_PERSON_STEPS).format(w=m, c=calculation, **words),
        rng.choice(_PERSON_STEPS).format(w=q, c=multiplication(rng, k, second), **words),
    ]
    if rng.random() < 0.5:
        text.append(rng.choice(_TOGETHER).format(**words))
        steps.append(rng.choice(_TOTAL_STEPS).format(c=addition(rng, third, second)))
        return _Story(text, steps, third + second, words["o"])
    text.append(rng.choice(_GAP).format(**words))
    steps.append(rng.choice(_GAP_STEPS).format(c=subtraction(rng, third, second), **words))
    return _Story(text, steps, third - second, words["o"])


def _work(rng: Random) -> _Story:
    """Work at two rates; the total or what is missing is asked for."""
    words = {"n": rng.choice(PEOPLE)[0], "o": rng.choice(THINGS)}
    (k, s), (j, t) = (rng.randint(2, 8), rng.randint(3, 16)), (rng.randint(2, 8), rng.randint(2, 12))
    text = [rng.choice(_WORK).format(k=k, s=s, j=j, t=t, **words)]
    total = k * s + j * t
    steps = [
        rng.choice(_PART_STEPS).format(part=part, k=a, s=b, c=multiplication(rng, a, b), **words)
        for part, a, b in (("first", k, s), ("second", j, t))
    ]
    steps.append(rng.choice(_TOTAL_STEPS).format(c=addition(rng, k * s, j * t)))
    if rng.random() < 0.5:
        text.append(rng.choice(_WORK_TOTAL).format(**words))
        return _Story(text, steps, total, words["o"])
    goal = ((total + 1) // 10 + rng.randint(1, 5)) * 10
    text.append(rng.choice(_WORK_LEFT).format(d=goal, **words))
    steps.append(rng.choice(_LEFT_STEPS).format(d=goal, c=subtraction(rng, goal, total), **words))
    return _Story(text, steps, goal - total, words["o"])


_STORIES = (_stock, _stock, _purchase, _comparison, _work)
