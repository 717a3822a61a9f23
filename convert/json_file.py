"""JSON objects on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specdiff_jax.errors import InputError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: the file can't be read, or holds no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path}: isn't valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: must hold a JSON object, not {type(content).__name__}")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write an object, indented, as UTF-8."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
