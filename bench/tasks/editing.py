"""Editing a list or a JSON object to two or three instructions; it stands in for the papers' editing tasks.

The worked answer shows the value after every instruction. Its last line ends with the final value as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from bench.tasks.problem import Problem
from bench.tasks.wording import PEOPLE, THINGS, WORDS

NAME = "editing"


_AFTER_VALUE = " \r\n.!`*"
"""The end of a sentence, of a fence, of bold text."""


class _Edit(NamedTuple):
    """An instruction carried out.

    Attributes:
        instruction: a clause in the imperative.
        note: the same in the worked answer.
        value: the value after it.
    """

    instruction: str
    note: str
    value: Any


_EditOf = Callable[[Random, Any], _Edit]

_PROMPTS = (
    "{kind}: {v}. {First}, then {rest}.",
    "Take the {kind} {v}. {First}, and then {rest}.",
    "Edit {v} as follows: {first}, then {rest}.",
    "Here is a {kind}: {v}. {First}. After that {rest}.",
    "Given {v}, {first}, then {rest}.",
    "Start with the {kind} {v} and {first}. Then {rest}.",
    "Change the {kind} {v}: first {first}, then {rest}.",
    "For the {kind} {v}, {first}, next {rest}.",
)
_OPENINGS = (
    "We start with {v}.",
    "The given {kind} is {v}.",
    "At first the {kind} is {v}.",
    "We begin with {v}.",
    "What is given: {v}",
    "Before any change: {v}",
)
_STEPS = (
    "{note}: {v}",
    "{note}, so it is {v}",
    "{note}. Now it is {v}",
    "{note}. We get {v}",
    "{note}; that is {v}",
    "{note}, which leads to {v}",
)
_LAST_STEPS = (
    "{note}. The result is {v}",
    "{note}. The final {kind} is {v}",
    "{note}. Result: {v}",
    "{note}, and we are done: {v}",
    "{note}, so at last the {kind} is {v}",
    "{note}. In the end: {v}",
    "Last step, {note}: {v}",
)


def generate(rng: Random) -> Problem:
    """Two or three edits of a list of numbers, a list of words or an object."""
    kind, draw, edits = rng.choice(_KINDS)
    given = draw(rng)
    steps = _steps(rng, given, edits, 3 if rng.random() < 0.3 else 2)
    first, *others = [step.instruction for step in steps]
    shown = [json.dumps(value) for value in (given, *(step.value for step in steps))]
    words = {"kind": kind, "v": shown[0], "first": first, "First": _sentence(first)}
    prompt = _sentence(rng.choice(_PROMPTS).format(rest=" and then ".join(others), **words))
    lines = [rng.choice(_OPENINGS).format(**words)]
    for step, value in zip(steps, shown[1:], strict=True):
        templates = _LAST_STEPS if step is steps[-1] else _STEPS
        lines.append(_sentence(rng.choice(templates).format(kind=kind, note=step.note, v=value)))
    return Problem(NAME, prompt, "\n".join(lines), {"result": steps[-1].value}, " ".join(shown))


def _steps(rng: Random, value: Any, edits: Sequence[_EditOf], count: int) -> list[_Edit]:
    """Different edits one after the other, none of which leaves less than two items."""
    steps: list[_Edit] = []
    used: list[_EditOf] = []
    while len(steps) < count:
        edit = rng.choice(edits)
        step = edit(rng, value)
        if edit not in used and len(step.value) > 1:
            used.append(edit)
            steps.append(step)
            value = step.value
    return steps


def is_correct(problem: Problem, text: str) -> bool:
    """Whether the last line of `text` ends with the final value; the order of keys in an object does not count."""
    lines = text.rstrip(_AFTER_VALUE).splitlines()
    line = lines[-1] if lines else ""
    starts = [at for at in (line.find("["), line.find("{")) if at >= 0]
    if not starts:
        return False
    try:
        value = json.loads(line[min(starts) :])
        # As text, since True == 1 == 1.0 in Python.
        return json.dumps(value, sort_keys=True) == json.dumps(problem.check["result"], sort_keys=True)
    except (ValueError, RecursionError):
        return False


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _place(rng: Random, values: Sequence[Any]) -> int:
    return rng.randint(0, len(values) - 1)


def _text(value: object) -> str:
    return json.dumps(value)


# Lists of anything.


def _remove(rng: Random, values: list[Any]) -> _Edit:
    at = _place(rng, values)
    gone = _text(values[at])
    instruction = rng.choice(("remove {x}", "delete {x}", "take out {x}", "drop {x}", "leave out {x}")).format(x=gone)
    note = rng.choice(("removing {x}", "without {x}", "dropping {x}", "with {x} gone", "taking out {x}")).format(x=gone)
    return _Edit(instruction, note, values[:at] + values[at + 1 :])


def _drop_end(rng: Random, values: list[Any]) -> _Edit:
    where = rng.choice(("first", "last"))
    kept, gone = (values[1:], values[0]) if where == "first" else (values[:-1], values[-1])
    instruction = rng.choice(("remove the {w} item", "drop the {w} element", "delete the {w} entry")).format(w=where)
    note = rng.choice(("the {w} is {x}, taking it out", "dropping {x}, the {w}", "removing {x} as the {w}"))
    return _Edit(instruction, note.format(w=where, x=_text(gone)), kept)


def _reverse(rng: Random, values: list[Any]) -> _Edit:
    instruction = rng.choice(("reverse it", "reverse the order", "turn the order around", "put it back to front"))
    note = rng.choice(("reversing", "back to front", "in reverse", "from the end to the start", "turned around"))
    return _Edit(instruction, note, values[::-1])


def _swap_ends(rng: Random, values: list[Any]) -> _Edit:
    instruction = rng.choice(("swap the first and last item", "exchange the first and last entry", "swap both ends"))
    note = rng.choice(("swapping {x} and {y}", "{x} and {y} trade places", "exchanging {x} and {y}"))
    note = note.format(x=_text(values[0]), y=_text(values[-1]))
    return _Edit(instruction, note, [values[-1], *values[1:-1], values[0]])


def _rotate(rng: Random, values: list[Any]) -> _Edit:
    instruction = rng.choice(
        ("move the first item to the end", "put the first entry last", "send the first to the end")
    )
    note = rng.choice(("moving {x} to the end", "{x} goes last", "with {x} at the end", "putting {x} last"))
    return _Edit(instruction, note.format(x=_text(values[0])), values[1:] + values[:1])


def _insert(rng: Random, values: list[Any], new: Any) -> _Edit:
    place = rng.randint(0, 3)
    x = _text(new)
    if place == 0:
        instruction = rng.choice(("add {x} at the start", "put {x} in front", "insert {x} at the beginning"))
        changed = [new, *values]
    elif place == 1:
        instruction = rng.choice(("append {x}", "add {x} at the end", "put {x} last"))
        changed = [*values, new]
    else:
        at = _place(rng, values)
        instruction = rng.choice(("insert {x} after ", "put {x} right after ", "add {x} behind ")) + _text(values[at])
        changed = [*values[: at + 1], new, *values[at + 1 :]]
    note = rng.choice(("adding {x}", "with {x} put in", "{x} goes in", "inserting {x}", "after {x} is added"))
    return _Edit(instruction.format(x=x), note.format(x=x), changed)


def _replace(rng: Random, values: list[Any], new: Any) -> _Edit:
    at = _place(rng, values)
    words = {"x": _text(values[at]), "y": _text(new)}
    instruction = rng.choice(
        ("replace {x} with {y}", "change {x} to {y}", "put {y} in place of {x}", "swap {x} for {y}")
    )
    note = rng.choice(("{x} becomes {y}", "replacing {x} with {y}", "{y} for {x}", "changing {x} to {y}"))
    return _Edit(instruction.format(**words), note.format(**words), [*values[:at], new, *values[at + 1 :]])


# Lists of numbers.


def _numbers(rng: Random) -> list[int]:
    return rng.sample(range(1, 60), rng.randint(5, 6))


def _new_number(rng: Random, values: list[int]) -> int:
    while (number := rng.randint(1, 60)) in values:
        pass
    return number


def _insert_number(rng: Random, values: list[int]) -> _Edit:
    return _insert(rng, values, _new_number(rng, values))


def _replace_number(rng: Random, values: list[int]) -> _Edit:
    return _replace(rng, values, _new_number(rng, values))


def _sort_numbers(rng: Random, values: list[int]) -> _Edit:
    down = rng.random() < 0.5
    if down:
        instruction = rng.choice(
            ("sort it in descending order", "sort from high to low", "order it from large to small")
        )
        note = rng.choice(("from high to low", "sorting down", "sorted, largest first", "in descending order"))
    else:
        instruction = rng.choice(
            ("sort it in ascending order", "sort from low to high", "order it from small to large")
        )
        note = rng.choice(("from low to high", "sorting up", "sorted, smallest first", "in ascending order"))
    return _Edit(instruction, note, sorted(values, reverse=down))


def _bound(rng: Random, values: list[int]) -> _Edit:
    limit = rng.choice((10, 20, 30, 40, 50))
    over = rng.random() < 0.5
    gone = [x for x in values if (x > limit if over else x < limit)]
    word = rng.choice(("over", "above", "greater than") if over else ("under", "below", "less than"))
    instruction = rng.choice(("remove all numbers {w} {k}", "drop everything {w} {k}", "delete the numbers {w} {k}"))
    note = _dropping(rng, f"{word} {limit}", gone)
    return _Edit(instruction.format(w=word, k=limit), note, [x for x in values if x not in gone])


def _parity(rng: Random, values: list[int]) -> _Edit:
    odd = rng.randint(0, 1)
    word = ("even", "odd")[odd]
    gone = [x for x in values if x % 2 == odd]
    instruction = rng.choice(("remove all {w} numbers", "drop every {w} number", "delete the {w} numbers"))
    return _Edit(instruction.format(w=word), _dropping(rng, word, gone), [x for x in values if x % 2 != odd])


def _dropping(rng: Random, what: str, gone: list[int]) -> str:
    if not gone:
        return rng.choice(("none is {w}", "there is nothing {w}", "no number is {w}")).format(w=what)
    listed = " and ".join(map(str, gone))
    return rng.choice(("{g} must go", "{w}: {g}, leaving them out", "dropping {g}", "without {g}")).format(
        w=what, g=listed
    )


def _raise(rng: Random, values: list[int]) -> _Edit:
    by = rng.choice((1, 2, 3, 10))
    instruction = rng.choice(("add {k} to each number", "raise every number by {k}", "increase each by {k}"))
    note = rng.choice(("each plus {k}", "adding {k} to all", "all go up by {k}", "raised by {k}"))
    return _Edit(instruction.format(k=by), note.format(k=by), [x + by for x in values])


# Lists of words.


def _words(rng: Random) -> list[str]:
    return rng.sample(WORDS, rng.randint(4, 5))


def _new_word(rng: Random, values: list[str]) -> str:
    while (word := rng.choice(WORDS)) in values:
        pass
    return word


def _insert_word(rng: Random, values: list[str]) -> _Edit:
    return _insert(rng, values, _new_word(rng, values))


def _replace_word(rng: Random, values: list[str]) -> _Edit:
    return _replace(rng, values, _new_word(rng, values))


def _capitals(rng: Random, values: list[str]) -> _Edit:
    at = _place(rng, values)
    word = _text(values[at])
    instruction = rng.choice(("put {x} in capitals", "write {x} in upper case", "turn {x} into capital letters"))
    note = rng.choice(("{x} in capitals", "upper case for {x}", "writing {x} large", "capitals for {x}"))
    return _Edit(instruction.format(x=word), note.format(x=word), [*values[:at], values[at].upper(), *values[at + 1 :]])


# Objects.

_FIELDS: dict[str, Sequence[Any]] = {
    "name": tuple(name for name, _ in PEOPLE),
    "age": range(5, 80),
    "city": ("Oslo", "Rome", "Lima", "Cairo", "Paris", "Quito", "Delhi", "Kyoto", "Berlin", "Dublin"),
    "color": ("red", "blue", "green", "white", "black", "yellow", "brown", "pink"),
    "item": THINGS,
    "price": range(2, 100),
    "count": range(1, 60),
    "size": ("small", "medium", "large", "tiny", "huge"),
    "day": ("Monday", "Tuesday", "Friday", "Sunday"),
    "open": (True, False),
    "level": range(1, 10),
    "owner": tuple(name for name, _ in PEOPLE),
    "code": WORDS,
}
_NEW_KEYS = ("label", "title", "kind", "group", "place", "info", "tag", "mark", "note", "part")


def _object(rng: Random) -> dict[str, Any]:
    return {key: rng.choice(_FIELDS[key]) for key in rng.sample(tuple(_FIELDS), rng.randint(3, 4))}


def _unused(rng: Random, values: dict[str, Any], keys: Sequence[str]) -> str:
    while (key := rng.choice(keys)) in values:
        pass
    return key


def _rename_key(rng: Random, values: dict[str, Any]) -> _Edit:
    old, new = rng.choice(tuple(values)), _unused(rng, values, _NEW_KEYS)
    words = {"x": _text(old), "y": _text(new)}
    instruction = rng.choice(("rename the key {x} to {y}", "rename {x} to {y}", "call the key {x} {y} instead"))
    note = rng.choice(("key {x} becomes {y}", "renaming {x} to {y}", "{x} is now called {y}", "{y} as name for {x}"))
    renamed = {new if key == old else key: value for key, value in values.items()}
    return _Edit(instruction.format(**words), note.format(**words), renamed)


def _set_value(rng: Random, values: dict[str, Any]) -> _Edit:
    key = rng.choice(tuple(values))
    while (value := rng.choice(_FIELDS.get(key, WORDS))) == values[key]:
        pass
    words = {"x": _text(key), "y": _text(value)}
    instruction = rng.choice(("set {x} to {y}", "change the value of {x} to {y}", "make {x} equal to {y}"))
    note = rng.choice(("{x} is now {y}", "setting {x} to {y}", "{x} gets {y}", "the value of {x} turns into {y}"))
    return _Edit(instruction.format(**words), note.format(**words), {**values, key: value})


def _add_key(rng: Random, values: dict[str, Any]) -> _Edit:
    key = _unused(rng, values, tuple(_FIELDS))
    value = rng.choice(_FIELDS[key])
    words = {"x": _text(key), "y": _text(value)}
    instruction = rng.choice(("add the key {x} with value {y}", "add {x} with {y} at the end", "append {x} set to {y}"))
    note = rng.choice(("adding {x}", "with {x} as a new key", "the new key {x} holds {y}", "{x} comes last"))
    return _Edit(instruction.format(**words), note.format(**words), {**values, key: value})


def _remove_key(rng: Random, values: dict[str, Any]) -> _Edit:
    key = rng.choice(tuple(values))
    name = _text(key)
    instruction = rng.choice(("remove the key {x}", "delete {x}", "drop the field {x}", "take out {x}")).format(x=name)
    note = rng.choice(("removing {x}", "without {x}", "{x} is gone", "dropping {x}", "taking out {x}")).format(x=name)
    return _Edit(instruction, note, {other: value for other, value in values.items() if other != key})


_ORDER_EDITS: tuple[_EditOf, ...] = (_remove, _drop_end, _reverse, _swap_ends, _rotate)
_KINDS: tuple[tuple[str, Callable[[Random], Any], tuple[_EditOf, ...]], ...] = (
    (
        "list",
        _numbers,
        (*_ORDER_EDITS, _insert_number, _replace_number, _sort_numbers, _bound, _parity, _raise),
    ),
    ("list", _words, (*_ORDER_EDITS, _insert_word, _replace_word, _capitals)),
    ("object", _object, (_rename_key, _set_value, _add_key, _remove_key)),
)
