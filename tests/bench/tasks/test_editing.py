"""Edited values: what the last line must be, and the edits themselves against the instructions."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from bench.tasks import Problem, is_correct, problems


@pytest.fixture(scope="module")
def drawn() -> list[Problem]:
    return [problem for seed in range(100) for problem in problems("editing", "train", seed, 20)]


def values(text: str) -> list[Any]:
    """All lists and objects in a text."""
    return [json.loads(found) for found in re.findall(r"\[[^\]]*\]|\{[^}]*\}", text)]


def test_steps_start_at_the_prompt_and_end_at_the_result(drawn: list[Problem]) -> None:
    for problem in drawn:
        shown = values(problem.answer)
        assert [shown[0]] == values(problem.prompt), problem
        assert shown[-1] == problem.check["result"], problem
        assert len(shown) in (3, 4), problem


def test_single_edits_follow_their_instructions(drawn: list[Problem]) -> None:
    """The last instruction, where it is one that this test can carry out by itself."""
    carried_out = 0
    for problem in drawn:
        *_, before, after = values(problem.answer)
        last = re.split(r", (?:and )?then | and then | After that |Then |, next ", problem.prompt)[-1].rstrip(".")
        expected = _carry_out(last, before)
        if expected is not None:
            carried_out += 1
            assert after == expected, problem
    assert carried_out > 500


def _carry_out(instruction: str, value: Any) -> Any:
    """An edit by an independent reading of its instruction; None where it has none."""
    if re.search(r"descending|high to low|large to small", instruction):
        return sorted(value, reverse=True)
    if re.search(r"ascending|low to high|small to large", instruction):
        return sorted(value)
    if re.search(r"reverse|around|back to front", instruction):
        return list(reversed(value))
    if re.search(r"(every|all|the) even number", instruction):
        return [number for number in value if number % 2]
    if re.search(r"(every|all|the) odd number", instruction):
        return [number for number in value if not number % 2]
    if found := re.search(r"(?:over|above|greater than) (\d+)$", instruction):
        return [number for number in value if number <= int(found[1])]
    if found := re.search(r"(?:under|below|less than) (\d+)$", instruction):
        return [number for number in value if number >= int(found[1])]
    if found := re.fullmatch(r"replace (\S+) with (\S+)", instruction):
        return [json.loads(found[2]) if item == json.loads(found[1]) else item for item in value]
    if (found := re.fullmatch(r"(?:remove|delete|drop|take out|leave out) (\d+|\"\w+\")", instruction)) and isinstance(
        value, list
    ):
        return [item for item in value if item != json.loads(found[1])]
    if found := re.fullmatch(r"rename (?:the key )?(\S+) to (\S+)", instruction):
        return {json.loads(found[2]) if key == json.loads(found[1]) else key: value[key] for key in value}
    return None


def test_an_edited_result_is_wrong(drawn: list[Problem]) -> None:
    for problem in drawn[:500]:
        *steps, last = problem.answer.splitlines()
        result = problem.check["result"]
        items = list(result.items()) if isinstance(result, dict) else result
        wrong: list[Any] = [items[1:], items[:-1], [*items, items[0]], [*items[:-1], "other"]]
        if isinstance(result, list):
            wrong.append([*result[1:], result[0]])
        else:
            wrong = [dict(pairs) for pairs in (items[1:], items[:-1], [*items[:-1], (items[-1][0], "other")])]
        start = min(at for at in (last.find("["), last.find("{")) if at >= 0)
        for value in wrong:
            text = last[:start] + json.dumps(value)
            assert value == result or not is_correct(problem, "\n".join([*steps, text])), (problem, value)


def test_what_counts_as_equal() -> None:
    answer = Problem("editing", "", "", {"result": {"a": 1, "b": True}}, "")
    assert is_correct(answer, 'Result: {"b":true,"a":1}')
    assert is_correct(answer, 'before: {"a": 2}\nResult: {"a": 1, "b": true}\n')
    assert not is_correct(answer, '{"a": 1, "b": 1}')
    assert not is_correct(answer, '{"a": 1.0, "b": true}')
    assert is_correct(answer, 'Result: {"a": 1, "b": true}.')
    assert is_correct(answer, 'Result: `{"a": 1, "b": true}`.')
    assert is_correct(answer, 'The result is **{"a": 1, "b": true}**')
    assert is_correct(answer, 'Result:\r\n```json\r\n{"a": 1, "b": true}\r\n```\r\n')
    assert not is_correct(answer, '{"a": 1, "b": true}, or not')
    assert not is_correct(answer, '{"a": 1, "b": true}}')
    assert not is_correct(answer, '{"a": ' + "9" * 5000 + "}")
    assert not is_correct(answer, '{"a": 1, "b": true}\nDone')
    assert not is_correct(answer, "[" * 100_000)
    words = Problem("editing", "", "", {"result": ["x", "y"]}, "")
    assert is_correct(words, '["x", "y"]')
    assert not is_correct(words, '["y", "x"]')
    assert not is_correct(words, "['x', 'y']")
