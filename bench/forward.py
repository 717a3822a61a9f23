"""Forward latency of a block of rows against a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.results import Row
from bench.run import Section, Settings, floors


def sections(
    geometries: Sequence[str], rows: Sequence[int], branches: Sequence[int], settings: Settings
) -> list[Section]:
    """The measurements: every geometry with every number of rows and of draft branches beside them."""
    return [_section(name, count, drafts, settings) for name in geometries for count in rows for drafts in branches]


def _section(name: str, rows: int, branches: int, settings: Settings) -> Section:
    shape = {"dtype": settings.dtype, "rows": rows, "cache_tokens": settings.cache_tokens}
    known: Row = {
        "geometry": name,
        "path": "dense" if branches else "vanilla",
        "implementation": "xla",
        "branches": branches,
        "fold_ratio": None,
        "rows": rows * (1 + branches),
        "microseconds": None,
        "spread": None,
        "weight_floor_microseconds": None,
        "settings": {"weights": "random", "xla_flags": settings.xla_flags, **shape},
    }
    return Section(known, "bench.forward_step", {"name": name, "branches": branches, **shape, **settings.timing}, _row)


def _row(known: Row, measured: dict[str, Any], bandwidth: float | None) -> Row:
    return {
        "microseconds": round(measured["seconds"] * 1e6, 2),
        "spread": round(measured["spread"], 3),
        **floors(measured, bandwidth),
    }
