"""JSON objects on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdiff_jax.errors import InputError
from specdiff_jax.keys import shown


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: the file can't be read, or holds no JSON object, or an object with a key that stands twice.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_repeats)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: must hold a JSON object")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object, indented, as UTF-8."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which a key that stands twice is an error instead of the last one winning."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {shown(next(name for name in names if names.count(name) > 1))} stands twice")
    return values
