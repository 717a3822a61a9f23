"""The last thing that a text states, which is what it is scored by."""

from __future__ import annotations

import re

_MARKS = re.compile(r"(?<!\w)(?:\*\*|[`$])|(?:\*\*|[`$])(?!\w)")
"""Bold, code and dollar signs, which say nothing at the edge of a word; two stars within one could be a power."""


def last_statement(text: str, ends: str) -> str:
    """The end of the last line after one of the marks `ends` and a space, without decoration and full stop."""
    lines = _MARKS.sub("", text).strip().splitlines()
    return re.split(rf"[{ends}]\s+", lines[-1].strip())[-1].rstrip(".!") if lines else ""
