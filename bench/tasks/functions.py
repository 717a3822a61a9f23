"""Small Python functions to a specification; they stand in for HumanEval and MBPP.

A specification is put together of pieces: what to go through, which of it to keep, how to change it and what to make of
it; or a chain of operations, a choice between cases, or a loop until a bound is passed. Scoring runs the answer against
given calls (`bench.tasks.confinement`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar

from bench.tasks.confinement import gives
from bench.tasks.fences import blocks
from bench.tasks.problem import Problem
from bench.tasks.wording import WORDS, table

NAME = "functions"

T = TypeVar("T")

_SHORTEST = 90
"""Characters that `Problem` promises: a shorter function gets a docstring."""


class _Function(NamedTuple):
    """A specification with its worked answer.

    Attributes:
        parameters: names.
        task: what the function does, in the third person, with "{a}" and "{b}" for the parameters.
        key: the same without a choice of words.
        body: lines at the indentation of the function.
        inputs: arguments to test with.
        result: what the function must return.
    """

    parameters: tuple[str, ...]
    task: str
    key: str
    body: list[str]
    inputs: Sequence[tuple[Any, ...]]
    result: Callable[..., Any]


class _Condition(NamedTuple):
    """A condition on one value.

    Attributes:
        plural: "are even".
        singular: "is even".
        code: an expression in `{x}`.
        holds: the condition itself.
        near: values at which it changes, so that a test with them tells it from similar ones.
    """

    plural: str
    singular: str
    code: str
    holds: Callable[[Any], bool]
    near: tuple[Any, ...]


class _Change(NamedTuple):
    """A change of one value: a participle, an expression in `{x}`, and the change itself."""

    text: str
    code: str
    apply: Callable[[Any], Any]


class _Result(NamedTuple):
    """What is made of many values.

    Attributes:
        text: a noun phrase about `{them}`.
        start, each: the lines before and in a loop that adds `{e}` to `{out}`.
        end: the expression of `{out}` after the loop.
        whole: an expression of a comprehension `{c}` without its brackets.
        make: the result of a list.
        changes: whether values may be changed before.
    """

    text: str
    start: str
    each: str
    end: str
    whole: str
    make: Callable[[list[Any]], Any]
    changes: bool = True


class _Source(NamedTuple):
    """What a function goes through.

    Attributes:
        parameters, variables: names to choose from.
        text: "the numbers in {a}".
        code: what to iterate over.
        read: the values of an argument.
        draw: arguments to test with: an empty one and others, with the given values in them.
    """

    parameters: tuple[str, ...]
    variables: tuple[str, ...]
    text: str
    code: str
    read: Callable[[Any], list[Any]]
    draw: Callable[[Random, tuple[Any, ...]], Sequence[Any]]
    condition: Callable[[Random], _Condition]
    change: Callable[[Random], _Change]
    results: tuple[_Result, ...]


_PROMPTS = (
    "Write a Python function {f} that {task}.",
    "Define a function {f} that {task}.",
    "I need a Python function {f}, which {task}.",
    "Implement {f} in Python. It {task}.",
    "Please code {f}: it {task}.",
    "Give me a Python function {f} that {task}.",
    "Complete {f} so that it {task}.",
)
_VERBS = table("get find make calc work solve pick build take run do give form derive")
_NOUNS = table("it result items value part out all data answer one this them thing step")


def generate(rng: Random) -> Problem:
    """A function of one of the families."""
    function = rng.choice(_FAMILIES)(rng)
    name = f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}"
    task = function.task.format(**dict(zip("ab", function.parameters, strict=False)))
    signature = f"{name}({', '.join(function.parameters)})"
    body = [f"    {line}" for line in function.body]
    if rng.random() < 0.15 or len(signature) + sum(map(len, body)) + len(body) < _SHORTEST:
        body.insert(0, f'    """{rng.choice(_DOCUMENTATIONS).format(task=task)}"""')
    prompt = rng.choice(_PROMPTS).format(f=signature, task=task)
    check = {
        "calls": [f"{name}({', '.join(map(repr, arguments))})" for arguments in function.inputs],
        "results": [repr(function.result(*arguments)) for arguments in function.inputs],
    }
    return Problem(NAME, prompt, "\n".join([f"def {signature}:", *body]), check, function.key)


def is_correct(problem: Problem, text: str) -> bool:
    """Whether the function in `text` returns the right result for every test.

    The code is the first fenced block that defines anything, or else all of the text. It has the builtins alone:
    nothing can be imported.
    """
    code = next((block for block in blocks(text) if "def " in block), text)
    return gives(code, problem.check["calls"], problem.check["results"])


_DOCUMENTATIONS = (
    "This {task}.",
    "It {task}.",
    "A function that {task}.",
    "Code that {task}.",
)


# Conditions and changes.


def _of(text: str, code: str, k: object, holds: Callable[[Any], bool], *near: Any) -> _Condition:
    """A condition with the constant `k`, whose text begins with a verb in the plural."""
    verb, _, rest = text.format(k=k).partition(" ")
    singular = {"are": "is", "have": "has"}.get(verb, f"{verb}s")
    return _Condition(f"{verb} {rest}", f"{singular} {rest}", code.format(x="{x}", k=k), holds, near)


_NUMBER_CONDITIONS: tuple[Callable[[int], _Condition], ...] = (
    lambda k: _of("are even", "{x} % 2 == 0", k, lambda x: x % 2 == 0, 1, 2),
    lambda k: _of("are odd", "{x} % 2 == 1", k, lambda x: x % 2 == 1, 1, 2),
    lambda k: _of("are greater than {k}", "{x} > {k}", k, lambda x: x > k, k - 1, k, k + 1),
    lambda k: _of("are less than {k}", "{x} < {k}", k, lambda x: x < k, k - 1, k, k + 1),
    lambda k: _of("are at least {k}", "{x} >= {k}", k, lambda x: x >= k, k - 1, k, k + 1),
    lambda k: _of("are at most {k}", "{x} <= {k}", k, lambda x: x <= k, k - 1, k, k + 1),
    lambda k: _of("are divisible by {k}", "{x} % {k} == 0", k, lambda x: x % k == 0, k - 1, k, k + 1),
    lambda k: _of("are not equal to {k}", "{x} != {k}", k, lambda x: x != k, k - 1, k, k + 1),
)
_NUMBER_CHANGES: tuple[Callable[[int], _Change], ...] = (
    lambda k: _Change(f"multiplied by {k}", f"{{x}} * {k}", lambda x: x * k),
    lambda k: _Change(f"increased by {k}", f"{{x}} + {k}", lambda x: x + k),
    lambda k: _Change(f"reduced by {k}", f"{{x}} - {k}", lambda x: x - k),
    lambda k: _Change("squared", "{x} * {x}", lambda x: x * x),
    lambda k: _Change("doubled", "{x} * 2", lambda x: x * 2),
    lambda k: _Change("negated", "-{x}", lambda x: -x),
)


def _of_length(*lengths: int) -> list[str]:
    """Two words of each length."""
    return [word[:length] for length in lengths for word in ("lanterns", "outbreak")]


_WORD_CONDITIONS: tuple[Callable[[int, str], _Condition], ...] = (
    lambda k, w: _of("have more than {k} letters", "len({x}) > {k}", k, lambda x: len(x) > k, *_of_length(k, k + 1)),
    lambda k, w: _of("have fewer than {k} letters", "len({x}) < {k}", k, lambda x: len(x) < k, *_of_length(k, k - 1)),
    lambda k, w: _of(
        "have {k} letters", "len({x}) == {k}", k, lambda x: len(x) == k, *_of_length(k - 1, k), "outbreak"
    ),
    lambda k, w: _of(
        "start with '{k}'", "{x}.startswith('{k}')", w[0], lambda x: x.startswith(w[0]), w, f"{w[0]}umbo", w[1:]
    ),
    lambda k, w: _of(
        "end with '{k}'", "{x}.endswith('{k}')", w[-1], lambda x: x.endswith(w[-1]), w, f"du{w[-1]}", w[:-1]
    ),
    lambda k, w: _of("contain '{k}'", "'{k}' in {x}", w[2], lambda x: w[2] in x, w, f"du{w[2]}b", w.replace(w[2], "")),
)
_WORD_CHANGES: tuple[Callable[[int, str], _Change], ...] = (
    lambda k, mark: _Change("in capitals", "{x}.upper()", str.upper),
    lambda k, mark: _Change("written backwards", "{x}[::-1]", lambda x: x[::-1]),
    lambda k, mark: _Change(f"cut to the first {k} letters", f"{{x}}[:{k}]", lambda x: x[:k]),
    lambda k, mark: _Change(f"without the first {k} letters", f"{{x}}[{k}:]", lambda x: x[k:]),
    lambda k, mark: _Change(f"followed by '{mark}'", f"{{x}} + '{mark}'", lambda x: x + mark),
    lambda k, mark: _Change("written twice", "{x} * 2", lambda x: x * 2),
)
_LETTER_CONDITIONS: tuple[Callable[[str], _Condition], ...] = (
    lambda k: _of("are lower-case vowels", "{x} in 'aeiou'", k, lambda x: x in "aeiou", *"oiEs"),
    lambda k: _of("are not lower-case vowels", "{x} not in 'aeiou'", k, lambda x: x not in "aeiou", *"oEst"),
    lambda k: _of("are capital letters", "{x}.isupper()", k, str.isupper, *"KHe"),
    lambda k: _of("are digits", "{x}.isdigit()", k, str.isdigit, *"73e"),
    lambda k: _of("are not digits", "not {x}.isdigit()", k, lambda x: not x.isdigit(), *"7eh"),
    lambda k: _of("are not '{k}'", "{x} != '{k}'", k, lambda x: x != k, k, k.upper(), "z"),
    lambda k: _of("are '{k}'", "{x} == '{k}'", k, lambda x: x == k, k, k.upper(), "z"),
)
_LETTER_CHANGES: tuple[Callable[[str], _Change], ...] = (
    lambda mark: _Change("in capitals", "{x}.upper()", str.upper),
    lambda mark: _Change("in lower case", "{x}.lower()", str.lower),
    lambda mark: _Change("written twice", "{x} * 2", lambda x: x * 2),
    lambda mark: _Change(f"followed by '{mark}'", f"{{x}} + '{mark}'", lambda x: x + mark),
)


def _number_condition(rng: Random) -> _Condition:
    return rng.choice(_NUMBER_CONDITIONS)(rng.randint(3, 12))


def _number_change(rng: Random) -> _Change:
    return rng.choice(_NUMBER_CHANGES)(rng.randint(2, 9))


def _word_condition(rng: Random) -> _Condition:
    return rng.choice(_WORD_CONDITIONS)(rng.randint(4, 6), rng.choice(WORDS))


def _word_change(rng: Random) -> _Change:
    return rng.choice(_WORD_CHANGES)(rng.randint(2, 4), rng.choice("!?."))


def _letter_condition(rng: Random) -> _Condition:
    return rng.choice(_LETTER_CONDITIONS)(rng.choice("aeionrlt"))


def _letter_change(rng: Random) -> _Change:
    return rng.choice(_LETTER_CHANGES)(rng.choice("-._"))


# Arguments to test with.


def _draw_numbers(rng: Random, near: tuple[int, ...]) -> list[list[int]]:
    """Each near value also alone, where the largest and the smallest of the others can't hide it."""
    mixed = (_mixed(rng, rng.choices(range(-9, 30), k=rng.randint(1, 4)), near) for _ in range(2))
    return [[], *mixed, *([value] for value in near)]


def _draw_tables(rng: Random, near: tuple[int, ...]) -> list[dict[str, int]]:
    return [dict(zip(rng.sample(WORDS, 7), numbers, strict=False)) for numbers in _draw_numbers(rng, near)]


def _draw_lasts(rng: Random, near: tuple[int, ...]) -> list[int]:
    return [0, *near, rng.randint(14, 40)]


def _draw_words(rng: Random, near: tuple[str, ...]) -> list[list[str]]:
    """The last two are each other's reverse, so that not both are sorted."""
    first, second = (_mixed(rng, rng.choices(WORDS, k=3), near) for _ in range(2))
    return [[], first, second, second[::-1]]


def _draw_texts(rng: Random, near: tuple[str, ...]) -> list[str]:
    return ["", *("".join(_mixed(rng, [*_cased_word(rng), str(rng.randint(1, 99))], near)) for _ in range(3))]


def _cased_word(rng: Random) -> str:
    return rng.choice(_CASES)(rng.choice(WORDS))


def _mixed(rng: Random, drawn: list[T], near: tuple[T, ...]) -> list[T]:
    """All of both: some fulfil the condition and some do not."""
    return sorted([*drawn, *near], key=lambda _: rng.random())


_CASES = (str.lower, str.upper, str.capitalize)


# Pipelines.

_LIST = _Result("a list of {them}", "[]", "{out}.append({e})", "{out}", "[{c}]", list)
_COUNT = _Result("the number of {them}", "0", "{out} += 1", "{out}", "len([{c}])", len, changes=False)
_OF_NUMBERS = (
    _LIST,
    _COUNT,
    _Result("the sum of {them}", "0", "{out} += {e}", "{out}", "sum({c})", sum),
    _Result(
        "the largest of {them}, or 0 if there are none",
        "[]",
        "{out}.append({e})",
        "max({out}, default=0)",
        "max([{c}], default=0)",
        lambda values: max(values, default=0),
    ),
    _Result(
        "the smallest of {them}, or 0 if there are none",
        "[]",
        "{out}.append({e})",
        "min({out}, default=0)",
        "min([{c}], default=0)",
        lambda values: min(values, default=0),
    ),
)
_OF_WORDS = (
    _LIST,
    _COUNT,
    _Result("a sorted list of {them}", "[]", "{out}.append({e})", "sorted({out})", "sorted({c})", sorted),
    *(
        _Result(
            f"a string of {{them}}, joined by '{mark}'",
            "[]",
            "{out}.append({e})",
            f"'{mark}'.join({{out}})",
            f"'{mark}'.join({{c}})",
            mark.join,
        )
        for mark in "-+"
    ),
)
_OF_LETTERS = (
    _LIST,
    _COUNT,
    _Result("a string of {them}", "''", "{out} += {e}", "{out}", "''.join({c})", "".join),
)

_SOURCES = (
    _Source(
        table("numbers values items data nums scores"),
        table("x n number v y"),
        "the numbers in {a}",
        "{a}",
        list,
        _draw_numbers,
        _number_condition,
        _number_change,
        _OF_NUMBERS,
    ),
    _Source(
        table("n limit top end size"),
        table("x i number v k"),
        "the numbers from 1 to {a}",
        "range(1, {a} + 1)",
        lambda last: list(range(1, last + 1)),
        _draw_lasts,
        _number_condition,
        _number_change,
        _OF_NUMBERS,
    ),
    _Source(
        table("prices stock counts ages points"),
        table("x n number v y"),
        "the values of the dictionary {a}",
        "{a}.values()",
        lambda values: list(values.values()),
        _draw_tables,
        _number_condition,
        _number_change,
        _OF_NUMBERS,
    ),
    _Source(
        table("words names terms labels tags"),
        table("word w name item s"),
        "the words in {a}",
        "{a}",
        list,
        _draw_words,
        _word_condition,
        _word_change,
        _OF_WORDS,
    ),
    _Source(
        table("text line phrase string title"),
        table("c ch letter char sign"),
        "the characters of {a}",
        "{a}",
        list,
        _draw_texts,
        _letter_condition,
        _letter_change,
        _OF_LETTERS,
    ),
)

_GATHERED = table("result out total found kept answer done")
_KEEPING = (
    "# keep those that {c}",
    "# only those that {c}",
    "# select what we want: they {c}",
    "# the ones that {c}",
    "# leave out all but those that {c}",
)
_CHANGING = (
    "# each one {c}",
    "# now take each {c}",
    "# all of them {c}",
    "# use the value {c}",
    "# next, each is {c}",
)
_GOING = (
    "# go through {t}",
    "# look at {t}",
    "# visit {t} one by one",
    "# check {t} in turn",
    "# loop over {t}",
)


def _pipeline(rng: Random) -> _Function:
    """Goes through a source, keeps some of it, may change it, and makes one thing of it."""
    source = rng.choice(_SOURCES)
    condition, result = source.condition(rng), rng.choice(source.results)
    change = source.change(rng) if result.changes and rng.random() < 0.65 else None
    parameter = rng.choice(source.parameters)
    them = f"{source.text} that {condition.plural}" + (f", each {change.text}" if change else "")

    def reference(argument: Any) -> Any:
        kept = filter(condition.holds, source.read(argument))
        return result.make([change.apply(value) for value in kept] if change else list(kept))

    write = rng.choice((_write_loop, _write_loop, _write_steps, _write_whole))
    body = write(rng, source, condition, change, result, parameter)
    inputs = [(argument,) for argument in source.draw(rng, condition.near)]
    task = f"returns {result.text.format(them=them)}"
    return _Function((parameter,), task, task, body, inputs, reference)


def _write_loop(
    rng: Random, source: _Source, condition: _Condition, change: _Change | None, result: _Result, parameter: str
) -> list[str]:
    x, out = rng.choice(source.variables), rng.choice(_GATHERED)
    lines = [f"{out} = {result.start}"]
    if rng.random() < 0.4:
        lines.append(rng.choice(_GOING).format(t=source.text.format(a=parameter)))
    lines.append(f"for {x} in {source.code.format(a=parameter)}:")
    if rng.random() < 0.5:
        lines.append(f"    {rng.choice(_KEEPING).format(c=condition.plural)}")
    lines.append(f"    if {condition.code.format(x=x)}:")
    expression = change.code.format(x=x) if change else x
    if change and rng.random() < 0.4:
        lines.append(f"        {rng.choice(_CHANGING).format(c=change.text)}")
    if change and rng.random() < 0.3:
        new = rng.choice(("new", "changed", "entry"))
        lines.append(f"        {new} = {expression}")
        expression = new
    lines.append(f"        {result.each.format(out=out, e=expression)}")
    return [*lines, f"return {result.end.format(out=out)}"]


def _write_steps(
    rng: Random, source: _Source, condition: _Condition, change: _Change | None, result: _Result, parameter: str
) -> list[str]:
    x, out = rng.choice(source.variables), rng.choice(_GATHERED)
    lines = []
    if rng.random() < 0.7:
        lines.append(rng.choice(_KEEPING).format(c=condition.plural))
    lines.append(f"{out} = [{x} for {x} in {source.code.format(a=parameter)} if {condition.code.format(x=x)}]")
    if change:
        if rng.random() < 0.7:
            lines.append(rng.choice(_CHANGING).format(c=change.text))
        lines.append(f"{out} = [{change.code.format(x=x)} for {x} in {out}]")
    # A comprehension of nothing but the list is the list.
    whole = result.whole.replace("[{c}]", "{c}").format(c=out)
    return [*lines, f"return {whole}"]


def _write_whole(
    rng: Random, source: _Source, condition: _Condition, change: _Change | None, result: _Result, parameter: str
) -> list[str]:
    x = rng.choice(source.variables)
    expression = change.code.format(x=x) if change else x
    lines = []
    if rng.random() < 0.6:
        lines.append(rng.choice(_KEEPING).format(c=condition.plural))
    comprehension = f"{expression} for {x} in {source.code.format(a=parameter)} if {condition.code.format(x=x)}"
    whole = result.whole.format(c=comprehension)
    if rng.random() < 0.5:
        out = rng.choice(_GATHERED)
        return [*lines, f"{out} = {whole}", f"return {out}"]
    return [*lines, f"return {whole}"]


# Chains of operations on one value.


class _Operation(NamedTuple):
    """An operation in the third person, its expression in `{x}`, and itself on a value and the other argument `{b}`."""

    text: str
    code: str
    apply: Callable[[Any, Any], Any]


_NUMBER_OPERATIONS: tuple[Callable[[int], _Operation], ...] = (
    lambda k: _Operation(f"multiplies it by {k}", f"{{x}} * {k}", lambda x, _: x * k),
    lambda k: _Operation(f"adds {k}", f"{{x}} + {k}", lambda x, _: x + k),
    lambda k: _Operation(f"subtracts {k}", f"{{x}} - {k}", lambda x, _: x - k),
    lambda k: _Operation(f"takes the remainder by {k}", f"{{x}} % {k}", lambda x, _: x % k),
    lambda k: _Operation("squares it", "{x} ** 2", lambda x, _: x**2),
    lambda k: _Operation("drops the sign", "abs({x})", lambda x, _: abs(x)),
)
_NUMBER_OPERATIONS_WITH: tuple[_Operation, ...] = (
    _Operation("adds {b}", "{x} + {b}", lambda x, y: x + y),
    _Operation("subtracts {b}", "{x} - {b}", lambda x, y: x - y),
    _Operation("multiplies it by {b}", "{x} * {b}", lambda x, y: x * y),
    _Operation("takes the larger of it and {b}", "max({x}, {b})", max),
    _Operation("takes the smaller of it and {b}", "min({x}, {b})", min),
)
_TEXT_OPERATIONS: tuple[Callable[[int, str, str, str], _Operation], ...] = (
    lambda k, mark, old, new: _Operation("reverses it", "{x}[::-1]", lambda x, _: x[::-1]),
    lambda k, mark, old, new: _Operation("puts it in capitals", "{x}.upper()", lambda x, _: x.upper()),
    lambda k, mark, old, new: _Operation("puts it in lower case", "{x}.lower()", lambda x, _: x.lower()),
    lambda k, mark, old, new: _Operation(f"keeps the first {k} characters", f"{{x}}[:{k}]", lambda x, _: x[:k]),
    lambda k, mark, old, new: _Operation(f"drops the first {k} characters", f"{{x}}[{k}:]", lambda x, _: x[k:]),
    lambda k, mark, old, new: _Operation(f"keeps the last {k} characters", f"{{x}}[-{k}:]", lambda x, _: x[-k:]),
    lambda k, mark, old, new: _Operation(f"puts '{mark}' at the end", f"{{x}} + '{mark}'", lambda x, _: x + mark),
    lambda k, mark, old, new: _Operation(f"puts '{mark}' in front", f"'{mark}' + {{x}}", lambda x, _: mark + x),
    lambda k, mark, old, new: _Operation(
        f"replaces '{old}' by '{new}'", f"{{x}}.replace('{old}', '{new}')", lambda x, _: x.replace(old, new)
    ),
    lambda k, mark, old, new: _Operation(
        f"removes '{old}'", f"{{x}}.replace('{old}', '')", lambda x, _: x.replace(old, "")
    ),
)
_TEXT_OPERATIONS_WITH: tuple[_Operation, ...] = (
    _Operation("adds {b} at the end", "{x} + {b}", lambda x, y: x + y),
    _Operation("puts {b} in front", "{b} + {x}", lambda x, y: y + x),
)


def _operations(rng: Random, numbers: bool, two: bool) -> list[_Operation]:
    """Two to four different operations, one of them with the second argument if there is one."""
    operations: list[_Operation] = []
    count = rng.randint(2, 4)
    while len(operations) < count:
        if numbers:
            operation = rng.choice(_NUMBER_OPERATIONS)(rng.randint(2, 9))
        else:
            operation = rng.choice(_TEXT_OPERATIONS)(rng.randint(2, 5), rng.choice("!?.-*"), *rng.sample("aeiorn", 2))
        if all(operation.code != done.code for done in operations):
            operations.append(operation)
    if two:
        with_other = _NUMBER_OPERATIONS_WITH if numbers else _TEXT_OPERATIONS_WITH
        operations[rng.randint(0, count - 1)] = rng.choice(with_other)
    return operations


_STEPS = (
    "# {n} it {t}",
    "# {n}: {t}",
    "# {n} step: {t}",
)
_ORDINALS = ("first", "then", "next", "now")


def _chain(rng: Random) -> _Function:
    """Two to four operations on a number or a text, one after the other."""
    numbers = rng.random() < 0.5
    names = ("a b", "n m", "x y", "p q", "u v") if numbers else ("text end", "word other", "s t", "first second")
    parameters = table(rng.choice(names))[: rng.randint(1, 2)]
    operations = _operations(rng, numbers, len(parameters) == 2)
    texts = [operation.text for operation in operations]
    task = f"takes {{a}}, {', '.join(texts[:-1])} and {texts[-1]}, then returns the result"

    def reference(value: Any, other: Any = None) -> Any:
        for operation in operations:
            value = operation.apply(value, other)
        return value

    if numbers:
        start = rng.randint(2, 12)  # Its neighbour differs in what is left by any division.
        inputs: list[tuple[Any, ...]] = [(start, 11), (start + 1, 11), (-start, -2), (start * 3, 59), (1, -61)]
    else:
        inputs = [(rng.choice(WORDS) + rng.choice(WORDS).upper(), rng.choice(WORDS)) for _ in range(3)]
        inputs.append((rng.choice(WORDS), rng.choice(WORDS)))
        inputs.append(("Ear of aeiorn AEIORN aeiorn raE", "no"))
    inputs = [arguments[: len(parameters)] for arguments in inputs]
    return _Function(parameters, task, task, _write_chain(rng, parameters, operations), inputs, reference)


def _write_chain(rng: Random, parameters: tuple[str, ...], operations: list[_Operation]) -> list[str]:
    value = rng.choice(("value", "result", "out", "answer", "current", "z"))
    source, other, lines = parameters[0], parameters[-1], []
    for place, operation in enumerate(operations):
        if rng.random() < 0.45:
            ordinal = _ORDINALS[place] if rng.random() < 0.7 else rng.choice(_ORDINALS[1:])
            lines.append(rng.choice(_STEPS).format(n=ordinal, t=operation.text.format(b=other)))
        lines.append(f"{value} = {operation.code.format(x=source, b=other)}")
        source = value
    if rng.random() < 0.5:
        return [*lines[:-1], lines[-1].replace(f"{value} =", "return", 1)]
    return [*lines, f"return {value}"]


# Choices between cases.

_LABELS = table("yes no big small high low red green left right good bad hot cold up down in out near far old new")


def _cases(rng: Random) -> _Function:
    """One of two or three results, by conditions on a number or a word."""
    numbers = rng.random() < 0.6
    x = rng.choice(table("n number value x amount") if numbers else table("word text name s term"))
    draw_condition, draw_change = (_number_condition, _number_change) if numbers else (_word_condition, _word_change)
    conditions = [draw_condition(rng)]
    if rng.random() < 0.5:
        second = draw_condition(rng)
        conditions += [second] if second.code != conditions[0].code else []
    if rng.random() < 0.6:
        labels = rng.sample(_LABELS, len(conditions) + 1)
        outcomes = [_label(label) for label in labels]
    else:
        outcomes = []
        while len(outcomes) <= len(conditions):
            outcome = _as_outcome(draw_change(rng))
            if all(outcome.text != other.text for other in outcomes):
                outcomes.append(outcome)
    cases = [f"{o.text} if {{a}} {c.singular}" for o, c in zip(outcomes, conditions, strict=False)]
    task = f"returns {', else '.join(cases)}, and otherwise {outcomes[-1].text}"

    def reference(value: Any) -> Any:
        for condition, outcome in zip(conditions, outcomes, strict=False):
            if condition.holds(value):
                return outcome.apply(value)
        return outcomes[-1].apply(value)

    near = [value for condition in conditions for value in condition.near]
    drawn = rng.choices(range(-9, 30), k=6) if numbers else rng.choices(WORDS, k=10)
    body = _write_cases(rng, x, conditions, outcomes)
    return _Function((x,), task, task, body, [(v,) for v in [*drawn, *near]], reference)


def _label(label: str) -> _Change:
    return _Change(f"'{label}'", f"'{label}'", lambda _: label)


def _as_outcome(change: _Change) -> _Change:
    return change._replace(text=f"{{a}} {change.text}")


_CASE_COMMENTS = (
    "# {x} {c}",
    "# the case that {x} {c}",
    "# this is when {x} {c}",
    "# check if {x} {c}",
)
_REST_COMMENTS = ("# in all other cases", "# otherwise", "# what is left", "# the last case")


def _write_cases(rng: Random, x: str, conditions: list[_Condition], outcomes: list[_Change]) -> list[str]:
    """Early returns or a chain of `elif` that sets a variable."""
    out = "" if rng.random() < 0.5 else rng.choice(_GATHERED)
    put = f"{out} =" if out else "return"
    lines = []
    for place, (condition, outcome) in enumerate(zip(conditions, outcomes, strict=False)):
        if (not out or not place) and rng.random() < 0.5:
            lines.append(rng.choice(_CASE_COMMENTS).format(x=x, c=condition.singular))
        lines.append(f"{'elif' if out and place else 'if'} {condition.code.format(x=x)}:")
        lines.append(f"    {put} {outcome.code.format(x=x)}")
    last = f"{put} {outcomes[-1].code.format(x=x)}"
    comment = [rng.choice(_REST_COMMENTS)] if rng.random() < 0.4 else []
    if out:
        return [*lines, "else:", *(f"    {line}" for line in [*comment, last]), f"return {out}"]
    return [*lines, *comment, last]


# Loops until a bound.


def _until(rng: Random) -> _Function:
    """Grows or shrinks a number past a bound; returns it or how often that took."""
    x = rng.choice(table("n number value start x"))
    k, bound = rng.randint(2, 9), rng.choice((10, 20, 30, 40, 50, 60, 80, 100))
    grow: Callable[[int], int]
    done: Callable[[int], bool]
    kind = rng.randint(0, 2)
    if kind == 0:
        text, code, grow = f"adds {k} to {{a}}", f"{{x}} + {k}", lambda v: v + k
    elif kind == 1:
        text, code, grow = f"multiplies {{a}} by {k}", f"{{x}} * {k}", lambda v: v * k
    else:
        bound = k
        text, code, grow = f"subtracts {k} from {{a}}", f"{{x}} - {k}", lambda v: v - k
    if kind == 2:
        goal, stay, done = f"below {bound}", f"{{x}} >= {bound}", lambda v: v < bound
    elif rng.random() < 0.5:
        goal, stay, done = f"over {bound}", f"{{x}} <= {bound}", lambda v: v > bound
    else:
        goal, stay, done = f"at least {bound}", f"{{x}} < {bound}", lambda v: v >= bound
    counted = rng.random() < 0.5
    wanted = ("how many times it did so", "the number of steps") if counted else ("{a}",)
    act = f"{text} until it is {goal} and returns "

    def reference(value: int) -> int:
        count = 0
        while not done(value):
            value, count = grow(value), count + 1
        return count if counted else value

    largest = 100 if kind == 2 else bound
    near = (1, bound // k, bound // k + 1, bound - 1, bound, bound + 1)
    inputs = [(value,) for value in (*near, *(rng.randint(1, largest) for _ in range(3)))]
    body = _write_until(rng, x, code, stay, goal, text.format(a=x), counted)
    return _Function((x,), act + rng.choice(wanted), act + wanted[0], body, inputs, reference)


def _write_until(rng: Random, x: str, code: str, stay: str, goal: str, text: str, counted: bool) -> list[str]:
    v = x if rng.random() < 0.5 else rng.choice(("current", "reached", "now"))
    count = rng.choice(("count", "steps", "times", "rounds"))
    lines = [f"{v} = {x}"] if v != x else []
    if counted:
        lines.append(f"{count} = 0")
    if rng.random() < 0.6:
        lines.append(rng.choice(("# go on until it is {g}", "# stop once it is {g}", "# not yet {g}")).format(g=goal))
    lines.append(f"while {stay.format(x=v)}:")
    if rng.random() < 0.6:
        lines.append(f"    # {rng.choice(('this', 'each round', 'here it', 'it'))} {text}")
    lines.append(f"    {v} = {code.format(x=v)}")
    if counted:
        lines.append(f"    {count} += 1")
    return [*lines, f"return {count if counted else v}"]


_FAMILIES = (_pipeline, _pipeline, _pipeline, _chain, _chain, _cases, _until)
