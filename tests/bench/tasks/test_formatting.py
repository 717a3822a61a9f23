"""The constraints one by one, and worked answers that are broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from bench.tasks import Problem, is_correct, problems
from bench.tasks.constraints import CONSTRAINTS, is_kept


@pytest.mark.parametrize(
    ("constraint", "kept", "broken"),
    [
        (
            {"kind": "items", "count": 2, "marker": "-"},
            "- a\n- b c\n",
            ["- a", "- a\n* b", "- a\n-\n", "x\n- a\n- b", "-a\n-b"],
        ),
        (
            {"kind": "numbered", "count": 2},
            "1. a\n2. b",
            ["1. a", "1. a\n1. b", "2. a\n1. b", "1.\n2.", "1. a\n2. b\n3. c"],
        ),
        ({"kind": "line words", "count": 2, "words": 3}, "a b c\nd e f", ["a b c", "a b c\nd e", "a b c d\ne f g"]),
        ({"kind": "parts", "count": 2, "separator": "***"}, "a\n***\nb", ["a", "a***", "a***b***c", "a---b"]),
        ({"kind": "sentences", "count": 2}, "A b! C3.5?\n", ["A.", "A. B", "A. B. C.", "A. . B", "A. !", ""]),
        (
            {"kind": "title", "count": 1},
            "<<A b>>\nC d!",
            ["<<A>>\nB. C.", "<<A>>", "<<A>> C.", "<A>\nC.", "<<>>\nC.", "C.\n<<A>>"],
        ),
        (
            {"kind": "keys", "keys": ["a", "b"]},
            '{"b": [1], "a": ""}',
            [
                '{"a": "x"}',
                '{"a": 1, "b": "y", "c": 2}',
                'Here: {"a": 1, "b": 2}',
                '{"a": ' + "9" * 5000 + "}",
                "[]",
                "x",
                "[" * 99_999,
            ],
        ),
        ({"kind": "bold", "count": 1}, "a *b* c", ["a b", "*a* *b*", "a *b", "* a *", "**a**"]),
        ({"kind": "capitals"}, "A B 3.", ["A b", "a"]),
        ({"kind": "small letters"}, "a b 3.", ["A b", "A"]),
        ({"kind": "no comma"}, "a; b", ["a, b"]),
        (
            {"kind": "ends", "phrase": "that is all"},
            "A b - That is all!\n",
            ["that is all, b", "xthat is all"],
        ),
        (
            {"kind": "starts", "phrase": "dear reader"},
            "DEAR READER: a",
            ["a dear reader", "dear readers"],
        ),
        ({"kind": "word", "word": "fern"}, "A *Fern* b", ["a ferns b", "a"]),
        ({"kind": "no word", "word": "fern"}, "A ferns b", ["a fern b", "FERN"]),
        ({"kind": "at most", "words": 3}, "a b c", ["a b c d"]),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_constraints(constraint: dict[str, Any], kept: str, broken: list[str]) -> None:
    assert is_kept(constraint, kept)
    assert [text for text in broken if is_kept(constraint, text)] == []


def test_forms_of_right_texts() -> None:
    title = {"kind": "title", "count": 3}
    assert is_kept(title, "<<A>>\nB.\nC! D?")
    assert is_kept(title, "<<A>>\n\nB. C. D *e.*")
    keys = {"kind": "keys", "keys": ["a", "b"]}
    assert is_kept(keys, '```json\n{"a": 1, "b": {"c": 2}}\n```')
    assert is_kept(keys, '```\r\n{"b": null, "a": 2}\r\n```\r\n')


@pytest.fixture(scope="module")
def drawn() -> list[Problem]:
    return [problem for seed in range(100) for problem in problems("formatting", "train", seed, 20)]


def test_every_constraint_occurs(drawn: list[Problem]) -> None:
    kinds = [constraint["kind"] for problem in drawn for constraint in problem.check["constraints"]]
    assert set(kinds) == set(CONSTRAINTS)
    assert min(map(kinds.count, CONSTRAINTS)) > 40


def test_settings_are_in_the_prompt(drawn: list[Problem]) -> None:
    """What scoring needs can be known from the prompt alone."""
    numbers = ("zero", "one", "two", "three", "four", "five", "six")
    for problem in drawn:
        for constraint in problem.check["constraints"]:
            for key, setting in constraint.items():
                if key == "kind":
                    continue
                for value in setting if isinstance(setting, list) else [setting]:
                    spelled = numbers[value] if isinstance(value, int) and value < 7 else value
                    assert str(value) in problem.prompt or spelled in problem.prompt, problem


def test_a_broken_answer_is_wrong(drawn: list[Problem]) -> None:
    """Each constraint is broken by the one change that must break it; the others may keep."""
    breaks = {
        "capitals": lambda text, _: text.lower(),
        "small letters": lambda text, _: text.upper(),
        "no comma": lambda text, _: text + ",",
        "ends": lambda text, _: text + " x",
        "starts": lambda text, _: "x " + text,
        "word": lambda text, c: text.lower().replace(c["word"], "thing"),
        "no word": lambda text, c: f"{text} {c['word']}",
        "at most": lambda text, c: text + " x" * c["words"],
        "items": lambda text, _: text.rsplit("\n", 1)[0],
        "numbered": lambda text, _: text.replace("2.", "3."),
        "line words": lambda text, _: text + " more",
        "parts": lambda text, c: f"{text}\n{c['separator']}\nmore",
        "sentences": lambda text, _: text + " More.",
        "title": lambda text, _: text.split("\n")[1],
        "keys": lambda text, c: text.replace(f'"{c["keys"][0]}"', '"other"'),
        "bold": lambda text, _: text.replace("*", ""),
    }
    for problem in drawn:
        for constraint in problem.check["constraints"]:
            broken = breaks[constraint["kind"]](problem.answer, constraint)
            assert not is_correct(problem, broken), (problem, constraint)
