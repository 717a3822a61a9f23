"""Fenced blocks, into which chat models put code and JSON."""

from __future__ import annotations

import re

_FENCE = re.compile(r"```[ \t]*\w*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def blocks(text: str) -> list[str]:
    """What stands in the fenced blocks of a text, whatever language they name; the last may be left open."""
    return _FENCE.findall(text.replace("\r\n", "\n"))
