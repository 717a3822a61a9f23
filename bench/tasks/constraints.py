"""Formatting constraints that a program can verify, in the manner of IFEval."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_SENTENCE_END = re.compile(r"[.!?]+[\"'*)]*(?:\s+|\Z)")


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines() if line.strip()]


def _has_items(text: str, count: int, marker: str) -> bool:
    lines = _lines(text)
    return len(lines) == count and all(line.startswith(f"{marker} ") and line[2:].strip() for line in lines)


def _is_numbered(text: str, count: int) -> bool:
    lines = _lines(text)
    return len(lines) == count and all(
        line.startswith(f"{n}. ") and len(line.split()) > 1 for n, line in enumerate(lines, 1)
    )


def _has_line_words(text: str, count: int, words: int) -> bool:
    lines = _lines(text)
    return len(lines) == count and all(len(line.split()) == words for line in lines)


def _has_parts(text: str, count: int, separator: str) -> bool:
    parts = text.split(separator)
    return len(parts) == count and all(part.strip() for part in parts)


def _has_sentences(text: str, count: int) -> bool:
    *sentences, rest = _SENTENCE_END.split(text)
    return not rest.strip() and len(sentences) == count and all(re.search(r"\w", part) for part in sentences)


def _has_title(text: str, count: int) -> bool:
    title, _, below = text.strip().partition("\n")
    return re.fullmatch(r"<<[^<>]+>>", title.strip()) is not None and _has_sentences(below, count)


def _has_keys(text: str, keys: list[str]) -> bool:
    fenced = re.fullmatch(r"```(?:json)?\s(.*)```", text.strip(), re.DOTALL)
    try:
        value = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and sorted(value) == sorted(keys)


def _has_bold(text: str, count: int) -> bool:
    return len(re.findall(r"\*\w+\*", text)) == count and text.count("*") == 2 * count


CONSTRAINTS: Mapping[str, Callable[..., bool]] = {
    "items": _has_items,
    "numbered": _is_numbered,
    "line words": _has_line_words,
    "parts": _has_parts,
    "sentences": _has_sentences,
    "title": _has_title,
    "keys": _has_keys,
    "bold": _has_bold,
    "capitals": lambda text: text == text.upper(),
    "small letters": lambda text: text == text.lower(),
    "no comma": lambda text: "," not in text,
    "ends": lambda text, phrase: re.search(rf"\b{re.escape(phrase)}[.!?]*\s*\Z", text, re.IGNORECASE) is not None,
    "starts": lambda text, phrase: re.match(rf"\s*{re.escape(phrase)}\b", text, re.IGNORECASE) is not None,
    "word": lambda text, word: re.search(rf"\b{word}\b", text, re.IGNORECASE) is not None,
    "no word": lambda text, word: re.search(rf"\b{word}\b", text, re.IGNORECASE) is None,
    "at most": lambda text, words: len(text.split()) <= words,
}
"""By kind: whether a text keeps a constraint, whose settings come by name."""


def is_kept(constraint: Mapping[str, Any], text: str) -> bool:
    """Whether `text` keeps a constraint: its "kind", a key of `CONSTRAINTS`, and the settings of that kind."""
    return CONSTRAINTS[constraint["kind"]](text, **{key: value for key, value in constraint.items() if key != "kind"})
