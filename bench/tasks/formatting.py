"""Short texts under formatting instructions that a program can verify; they stand in for IFEval.

What a text says does not count: scoring looks only at the constraints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from bench.tasks.constraints import is_kept
from bench.tasks.problem import Problem
from bench.tasks.wording import WORDS, table

NAME = "formatting"

_SHORTEST = 90
_LONGEST_PROMPT = 250
"""Characters of what `Problem` promises."""


class _Demand(NamedTuple):
    """An instruction, and the constraint that verifies it."""

    instruction: str
    constraint: dict[str, Any]


class _Draft(NamedTuple):
    """A text in its form.

    Attributes:
        demand: the form that is asked for.
        parts: the sentences or lines.
        join: puts the parts into the form.
    """

    demand: _Demand
    parts: list[str]
    join: Callable[[list[str]], str]


# The content.

_TOPICS = table("""
    sea garden library bakery forest market river castle museum school farm beach bridge park kitchen island harbor
    village mountain lake station orchard theater factory tower meadow desert canal airport bookshop cafe workshop
    stadium vineyard lighthouse square valley windmill greenhouse temple mill barn pier studio zoo gallery cellar court
""")
_ADJECTIVES = table("""
    calm bright quiet busy old warm cold green wide small lively clean dark famous peaceful cheerful simple grand lovely
    misty modern noisy open pretty sunny tidy wild rich safe still
""")
_TIMES = (
    *("at night", "in spring", "in summer", "in winter", "after rain", "at dawn", "at noon", "every day", "on Sunday"),
    *("today", "in autumn", "all year"),
)
_VISITORS = table("children visitors artists birds farmers workers families students tourists friends sailors poets")
_DOINGS = table("come meet rest sing talk play walk learn work gather wait dream")
_VERBS = table("is looks feels seems stays")
_LOOSE = (
    "the {t} {v} {a} {w}",
    "the {t} {v} {a} and {b}",
    "{a} {p} {d} near the {t}",
    "many {p} {d} here {w}",
    "{p} {d} at the {t} {w}",
    "the {t} has {a} paths",
    "we like the {a} {t}",
    "it {v} {a} and {b} {w}",
    "here the air is {a}",
    "this {a} {t} helps {p}",
    "most {p} love its {a} side",
)
_LED_IN = (
    "{w}, {p} {d} here",
    "{w}, the {t} {v} {a}",
    "it {v} {a}, {b} and {c}",
    "{p}, {q} and others {d} here",
    "for {p}, the {t} {v} {a}",
)
_COUNTED: Mapping[int, tuple[str, ...]] = {
    4: ("the {t} {v} {a}", "{a} {p} {d} here", "many {p} {d} there", "its {a} {t} waits", "{p} love the {t}"),
    5: (
        "the {a} {t} {v} {b}",
        "{a} {p} often {d} here",
        "many {p} {d} there daily",
        "we love this {a} {t}",
        "it {v} {a} and {b}",
    ),
    6: (
        "the {t} {v} {a} and {b}",
        "{a} and {b} {p} {d} here",
        "many {p} {d} at the {t}",
        "we walk to the {a} {t}",
        "its {a} paths lead {p} home",
    ),
    7: (
        "the {a} {t} often {v} very {b}",
        "{a} and {b} {p} often {d} there",
        "some {a} {p} {d} near the {t}",
        "it {v} {a} and {b} this week",
        "we see the {t} and feel {a}",
    ),
}
_WITH_WORD = (
    "it is known for its {x}",
    "people bring the {x} there",
    "one {x} stands at the {t}",
    "look for the {x} there",
)
_PHRASES = (
    "that is all",
    "come and see",
    "see you soon",
    "thank you for reading",
    "this is the end",
    "what a day",
    "tell your friends",
    "do not miss it",
    "stay a while",
    "enjoy your visit",
    "we wish you well",
    "until next time",
    "have a good trip",
    "so it goes",
    "now you know",
    "the rest is up to you",
)
_STARTS = (
    "dear reader",
    "good morning",
    "hello friends",
    "listen well",
    "let me tell you",
    "here we go",
    "as you know",
    "welcome to all",
    "first of all",
    "by the way",
)
_KEYS = ("title", "summary", "note", "place", "mood", "tip", "detail", "reason", "theme", "caption", "view", "season")
_COUNTS = ("zero", "one", "two", "three", "four", "five", "six")


def _sentence(rng: Random, topic: str, *, commas: bool) -> str:
    return _filled(rng, rng.choice(_LED_IN if commas and rng.random() < 0.4 else _LOOSE), topic)


def _filled(rng: Random, template: str, topic: str) -> str:
    choice = rng.choice
    a, b, c = choice(_ADJECTIVES), choice(_ADJECTIVES), choice(_ADJECTIVES)
    text = template.format(
        t=topic,
        a=a,
        b=b,
        c=c,
        v=choice(_VERBS),
        w=choice(_TIMES),
        p=choice(_VISITORS),
        q=choice(_VISITORS),
        d=choice(_DOINGS),
    )
    return text[0].upper() + text[1:]


# The forms.


def _items(rng: Random, topic: str, commas: bool) -> _Draft:
    count, marker = rng.randint(3, 5), rng.choice("-*+")
    instruction = rng.choice(
        (
            "Write {n} bullet points about the {t}, each starting with '{m} '.",
            "List {n} facts on the {t} as bullets marked '{m}'.",
            "Give {n} bullet points on the {t}. Use {m} as the bullet.",
            "Make a list of {n} lines about the {t}; begin each line with '{m} '.",
        )
    ).format(n=_number(rng, count), t=topic, m=marker)
    parts = [_sentence(rng, topic, commas=commas) for _ in range(count)]
    constraint = {"kind": "items", "count": count, "marker": marker}
    return _Draft(_Demand(instruction, constraint), parts, lambda done: "\n".join(f"{marker} {part}" for part in done))


def _numbered(rng: Random, topic: str, commas: bool) -> _Draft:
    count = rng.randint(3, 5)
    instruction = rng.choice(
        (
            "Write a numbered list of {n} points about the {t}.",
            "Give {n} numbered facts on the {t} (1. 2. and so on).",
            "Number {n} lines about the {t} from 1. on.",
            "Name {n} things about the {t} in a list with 1., 2. and so on.",
        )
    ).format(n=_number(rng, count), t=topic)
    parts = [_sentence(rng, topic, commas=commas) for _ in range(count)]
    return _Draft(_Demand(instruction, {"kind": "numbered", "count": count}), parts, _join_numbered)


def _join_numbered(parts: list[str]) -> str:
    return "\n".join(f"{n}. {part}" for n, part in enumerate(parts, 1))


def _line_words(rng: Random, topic: str, commas: bool) -> _Draft:
    words = rng.choice(tuple(_COUNTED))
    count = 5 if words == 4 else rng.randint(4, 5)
    instruction = rng.choice(
        (
            "Write {n} lines about the {t}, each of exactly {k} words.",
            "Write a poem of {n} lines on the {t}. Every line has {k} words.",
            "Describe the {t} in {n} lines with exactly {k} words in each line.",
            "I want {n} lines on the {t}, {k} words a line.",
        )
    ).format(n=_number(rng, count), t=topic, k=_number(rng, words) if words < 7 else words)
    parts = [_filled(rng, rng.choice(_COUNTED[words]), topic) for _ in range(count)]
    return _Draft(_Demand(instruction, {"kind": "line words", "count": count, "words": words}), parts, "\n".join)


def _parts(rng: Random, topic: str, commas: bool) -> _Draft:
    count, separator = rng.randint(2, 4), rng.choice(("***", "---", "===", "+++", "###", "///"))
    instruction = rng.choice(
        (
            "Write {n} paragraphs about the {t}, separated by {s}.",
            "Describe the {t} in {n} parts with {s} between them.",
            "Give {n} short texts on the {t}. Put {s} between the texts.",
            "Tell me about the {t} in {n} parts divided by {s}.",
        )
    ).format(n=_number(rng, count), t=topic, s=separator)
    each = 4 - count if count < 4 else 1
    parts = [_prose([_sentence(rng, topic, commas=commas) for _ in range(each)]) for _ in range(count)]
    constraint = {"kind": "parts", "count": count, "separator": separator}
    return _Draft(_Demand(instruction, constraint), parts, f"\n{separator}\n".join)


def _sentences(rng: Random, topic: str, commas: bool) -> _Draft:
    count = rng.randint(3, 5)
    instruction = rng.choice(
        (
            "Write {n} sentences about the {t}.",
            "Describe the {t} in exactly {n} sentences.",
            "Tell me about the {t} in {n} sentences.",
            "Write a short text on the {t} with {n} sentences.",
        )
    ).format(n=_number(rng, count), t=topic)
    parts = [_sentence(rng, topic, commas=commas) for _ in range(count)]
    return _Draft(_Demand(instruction, {"kind": "sentences", "count": count}), parts, _prose)


def _title(rng: Random, topic: str, commas: bool) -> _Draft:
    count = rng.randint(3, 4)
    instruction = rng.choice(
        (
            "Write a title in << >> and below it {n} sentences about the {t}.",
            "Write {n} sentences on the {t} under a title like <<title>>.",
            "Put a title for the {t} in <<double angles>>. On the next line write {n} sentences.",
        )
    ).format(n=_number(rng, count), t=topic)
    heading = (
        f"<<{_filled(rng, rng.choice(('The {a} {t}', 'This {a} and {b} {t}', 'The {t} {w}', '{a} {t}')), topic)}>>\n"
    )
    parts = [_sentence(rng, topic, commas=commas) for _ in range(count)]
    return _Draft(_Demand(instruction, {"kind": "title", "count": count}), parts, lambda done: heading + _prose(done))


def _object(rng: Random, topic: str, commas: bool) -> _Draft:
    keys = rng.sample(_KEYS, rng.randint(3, 4))
    listed = ", ".join(keys[:-1]) + " and " + keys[-1]
    instruction = rng.choice(
        (
            "Describe the {t} as JSON with the keys {k}.",
            "Answer in JSON only: an object on the {t} with {k}.",
            "Give a JSON object about the {t}. Its keys are {k}.",
            "Write JSON with {k} as keys, on the subject of the {t}.",
        )
    ).format(t=topic, k=listed)
    parts = [_sentence(rng, topic, commas=True) for _ in keys]
    constraint = {"kind": "keys", "keys": keys}
    return _Draft(_Demand(instruction, constraint), parts, lambda done: json.dumps(dict(zip(keys, done, strict=True))))


def _prose(parts: list[str]) -> str:
    return ". ".join(parts) + "."


def _number(rng: Random, number: int) -> str:
    return _COUNTS[number] if rng.random() < 0.5 else str(number)


# The further constraints: each changes the parts so that they keep it.


def _ask_word(rng: Random, topic: str, parts: list[str]) -> _Demand:
    word = rng.choice(WORDS)
    parts[rng.randint(0, len(parts) - 1)] = rng.choice(_WITH_WORD).format(x=word, t=topic).capitalize()
    instruction = rng.choice(
        ("Use the word '{x}'.", "Include the word '{x}'.", "Mention '{x}'.", "The word {x} must occur.")
    )
    return _Demand(instruction.format(x=word), {"kind": "word", "word": word})


def _ask_bold(rng: Random, topic: str, parts: list[str]) -> _Demand:
    count = rng.randint(1, 2)
    for at in rng.sample(range(len(parts)), count):
        words = parts[at].split()
        place = rng.choice([n for n, word in enumerate(words) if word.isalpha()])
        words[place] = f"*{words[place]}*"
        parts[at] = " ".join(words)
    instruction = rng.choice(
        ("Put {n} word{s} in *stars*.", "Mark exactly {n} word{s} with *stars*.", "Highlight {n} word{s} like *this*.")
    )
    return _Demand(instruction.format(n=_number(rng, count), s="s"[: count - 1]), {"kind": "bold", "count": count})


def _ask_start(rng: Random, topic: str, parts: list[str]) -> _Demand:
    phrase = rng.choice(_STARTS)
    parts[0] = phrase.capitalize() + rng.choice((": ", " - ", "; ")) + parts[0]
    instruction = rng.choice(("Begin with '{x}'.", "Start with the words '{x}'.", "The first words must be '{x}'."))
    return _Demand(instruction.format(x=phrase), {"kind": "starts", "phrase": phrase})


def _ask_end(rng: Random, topic: str, parts: list[str]) -> _Demand:
    phrase = rng.choice(_PHRASES)
    parts[-1] += rng.choice((" - ", "; ", " so ", ": ", " and ")) + phrase
    instruction = rng.choice(
        ("End with the words '{x}'.", "Finish with the words '{x}'.", "The last words must be '{x}'.")
    )
    return _Demand(instruction.format(x=phrase), {"kind": "ends", "phrase": phrase})


_FURTHER: tuple[tuple[Callable[[Random, str, list[str]], _Demand], float, frozenset[str]], ...] = (
    (_ask_word, 0.3, frozenset({"items", "numbered", "parts", "sentences", "title", "keys"})),
    (_ask_bold, 0.25, frozenset({"numbered", "line words", "sentences", "title"})),
    (_ask_start, 0.3, frozenset({"parts", "sentences"})),
    (_ask_end, 0.35, frozenset({"items", "numbered", "parts", "sentences", "title"})),
)
"""How to ask for more, for what share of the texts, and in which forms. Phrases come last, so that they stay whole."""


def _ask_no_comma(rng: Random) -> _Demand:
    instruction = rng.choice(("Use no commas.", "Do not use any comma.", "Avoid commas.", "No commas please."))
    return _Demand(instruction, {"kind": "no comma"})


def _ask_case(rng: Random) -> tuple[_Demand, Callable[[str], str]]:
    if rng.random() < 0.5:
        instruction = rng.choice(
            ("Use only capital letters.", "Write all in capitals.", "ALL LETTERS MUST BE CAPITALS.")
        )
        return _Demand(instruction, {"kind": "capitals"}), str.upper
    instruction = rng.choice(
        ("Use only small letters.", "Write all in lower case.", "There must be no capital letters.")
    )
    return _Demand(instruction, {"kind": "small letters"}), str.lower


def _ask_length(rng: Random, text: str) -> _Demand:
    words = (len(text.split()) // 5 + rng.randint(1, 2)) * 5
    instruction = rng.choice(("Use at most {n} words.", "Stay within {n} words.", "No more than {n} words."))
    return _Demand(instruction.format(n=words), {"kind": "at most", "words": words})


def _ask_without(rng: Random, text: str) -> _Demand:
    used = text.lower()
    word = rng.choice([word for word in (*rng.choices(_ADJECTIVES, k=6), "never") if word not in used])
    instruction = rng.choice(("Do not use the word '{x}'.", "Avoid the word '{x}'.", "The word {x} must not occur."))
    return _Demand(instruction.format(x=word), {"kind": "no word", "word": word})


_FORMS = (_items, _numbered, _line_words, _parts, _sentences, _sentences, _title, _object)


def generate(rng: Random) -> Problem:
    """A text in one of seven forms, mostly with one or more further constraints."""
    while len((problem := _draw(rng)).answer) < _SHORTEST or len(problem.prompt) > _LONGEST_PROMPT:
        pass
    return problem


def _draw(rng: Random) -> Problem:
    topic = rng.choice(_TOPICS)
    commas = rng.random() < 0.75
    demand, parts, join = rng.choice(_FORMS)(rng, topic, commas)
    kind = demand.constraint["kind"]
    demands = [demand]
    demands += [ask(rng, topic, parts) for ask, share, kinds in _FURTHER if kind in kinds and rng.random() < share]
    text = join(parts)
    if kind != "keys":
        if not commas:
            demands.append(_ask_no_comma(rng))
        if rng.random() < 0.25:
            case, change = _ask_case(rng)
            demands.append(case)
            text = change(text)
        if kind != "line words" and rng.random() < 0.15:
            demands.append(_ask_length(rng, text))
    if rng.random() < 0.15:
        demands.append(_ask_without(rng, text))
    prompt = " ".join(demand.instruction for demand in demands)
    constraints = [demand.constraint for demand in demands]
    return Problem(NAME, prompt, text, {"constraints": constraints}, _key(topic, constraints))


def _key(topic: str, constraints: list[dict[str, Any]]) -> str:
    """The subject with the constraints, which are always drawn in one order; the order of JSON keys does not count."""
    settings = (sorted(value) if isinstance(value, list) else value for one in constraints for value in one.values())
    return " ".join(map(str, (topic, *settings)))


def is_correct(problem: Problem, text: str) -> bool:
    """Whether `text` says anything and keeps every constraint."""
    return bool(text.strip()) and all(is_kept(constraint, text) for constraint in problem.check["constraints"])
