"""Prompts files: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdiff_jax.chat import check_messages
from specdiff_jax.errors import InputError


@dataclass(frozen=True)
class PromptEntry:
    """One line of a prompts file.

    Attributes:
        prompt: a text, or a list of chat messages ({"role", "content"}).
        id: what the line calls itself, if anything; results carry it along.
    """

    prompt: str | list[dict[str, Any]]
    id: str | int | None = None


def read_prompts(path: Path) -> list[PromptEntry]:
    """The entries of a prompts file, in order; blank lines and keys other than the three are passed over.

    Raises:
        InputError: the file can't be read or holds no prompt, or a line is malformed (named by file and line).
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"prompts file {path} can't be read: {error}") from error
    entries = [_entry(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not entries:
        raise InputError(f'prompts file {path} is empty: write one JSON object a line with "prompt" or "messages"')
    return entries


def _entry(line: str, where: str) -> PromptEntry:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict) or ("prompt" in value) == ("messages" in value):
        raise InputError(f'{where}: needs an object with either "prompt" (text) or "messages" (chat)')
    identity = value.get("id")
    if identity is not None and (isinstance(identity, bool) or not isinstance(identity, str | int)):
        raise InputError(f'{where}: "id" must be a text or a whole number')
    if "messages" in value:
        check_messages(value["messages"], where)
        return PromptEntry(value["messages"], identity)
    if not isinstance(value["prompt"], str) or not value["prompt"]:
        raise InputError(f'{where}: "prompt" must be a text of at least one character')
    return PromptEntry(value["prompt"], identity)
