"""Forwards, each beside the vanilla one of the same implementation."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from bench.results import Row


def beside_vanilla(rows: Iterable[Row]) -> list[Row]:
    """The rows, which gain `ratio_to_vanilla`: their time over that of the vanilla forward, None where one of them was
    not measured.
    """
    rows = list(rows)
    vanilla = {_asked(row): row["microseconds"] for row in rows if row["path"] == "vanilla"}
    return [{**row, "ratio_to_vanilla": _ratio(row["microseconds"], vanilla.get(_asked(row)))} for row in rows]


def _asked(row: Row) -> Hashable:
    """What a forward has in common with the vanilla one that it is measured against."""
    settings = row["settings"]
    same = ("rows", "cache_tokens", "dtype", "xla_flags")
    return row["geometry"], row["implementation"], *(settings.get(name) for name in same)


def _ratio(time: float | None, other: float | None) -> float | None:
    return None if time is None or other is None else time / other
