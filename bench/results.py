"""Result files: `<folder>/<gpu>/<name>.json`, to which each run adds its rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.environment import Environment
from specdiff_jax.errors import InputError

Row = dict[str, Any]

KEYS = {
    "decode": ("model", "task", "method", "settings"),
    "drafting": ("geometry", "width", "prefix", "settings"),
    "drafts": ("model", "task", "method", "settings"),
    "folds": ("model", "task", "method", "settings", "problems"),
    "flips": ("model", "method", "settings"),
    "forward": ("geometry", "path", "implementation", "branches", "settings"),
    "kernels": ("geometry", "kernel", "implementation", "rows", "settings"),
}
"""What tells the rows of a file apart: a new row takes the place of the old one that agrees in all of these.

Settings agree whatever implementation ran: it is no setting but what the library chose at that time.
"""


def read_results(file: Path) -> dict[str, Any]:
    """The content of a result file.

    Raises:
        InputError: the file can't be read or holds something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"results file {file} can't be read: {error}; delete it or restore it") from error
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise InputError(f'results file {file} needs an object with a list "rows"; delete it or restore it')
    return content


def merge(old: Iterable[Row], new: Iterable[Row], keys: tuple[str, ...]) -> list[Row]:
    """Rows in order of arrival, one for each set of keys: the newest, unless only that one is an error."""
    rows: dict[str, Row] = {}
    for row in (*old, *new):
        asked = {**row, "settings": {**row["settings"], "implementation": None}}
        identity = json.dumps([asked[key] for key in keys], sort_keys=True)
        if "error" in row and "error" not in rows.get(identity, row):
            continue
        rows[identity] = row
    return list(rows.values())


def add_rows(folder: Path, name: str, environment: Environment, rows: Iterable[Row]) -> Path:
    """Write `rows` into the result file `name` of the environment's GPU, in one stroke; rows with other keys stay.

    The head of the file tells of the newest rows; every row says the same of itself under `measured`.
    """
    file = folder / environment.gpu / f"{name}.json"
    about = asdict(environment)
    measured = {key: value for key, value in about.items() if key != "gpu"}
    old = read_results(file)["rows"] if file.exists() else []
    merged = merge(old, [{**row, "measured": measured} for row in rows], KEYS[name])
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({**about, "rows": merged}, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, file)
    return file
