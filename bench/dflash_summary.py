"""Answers with a drafter, each beside the autoregressive ones to the same prompts."""

from __future__ import annotations

import json
from collections.abc import Iterable

from bench.results import Row

_OWN = ("implementation", "drafter", "block_size")
"""Settings that an autoregressive row lacks or that may differ from it."""


def beside_autoregressive(rows: Iterable[Row]) -> list[Row]:
    """The rows with a drafter, which gain `speedup`: their tokens a second over those of autoregressive decoding, None
    where one of the two was not measured.
    """
    rows = list(rows)
    plain = {_asked(row): row["tokens_per_second"] for row in rows if row["method"] == "autoregressive"}
    return [
        {**row, "speedup": _ratio(row["tokens_per_second"], plain.get(_asked(row)))}
        for row in rows
        if row["method"] == "dflash"
    ]


def without_drafted(rows: Iterable[Row]) -> list[Row]:
    """The rows but those with a drafter and those that they stand beside."""
    rows = list(rows)
    drafted = {_asked(row) for row in rows if row["method"] == "dflash"}
    return [row for row in rows if _asked(row) not in drafted]


def _asked(row: Row) -> str:
    """What two rows have in common that answer the same prompts in the same way."""
    settings = {name: value for name, value in row["settings"].items() if name not in _OWN}
    return json.dumps([row["model"], row["task"], row["problems"], settings], sort_keys=True)


def _ratio(speed: float | None, other: float | None) -> float | None:
    return None if speed is None or other is None else speed / other
