"""Forward latency of a block of rows against a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.results import Row
from bench.run import Section, Settings, floors

IMPLEMENTATIONS = ("default", "xla", "pallas")


@dataclass(frozen=True)
class ForwardBench:
    """What to measure: every combination.

    Attributes:
        geometries: bundled shapes.
        rows: of a block.
        branches: drafts beside the block; 0 is a plain forward.
        fold_ratios: shares of the drafts' rows that are folded, each measured beside dense verification.
        buckets: how many row counts a folded layer is compiled for.
        implementations: of what stands around the products, of `IMPLEMENTATIONS`; "default" is the fastest there.
        profile: whether the shares of the kernel families are measured, too.
    """

    geometries: Sequence[str]
    rows: Sequence[int]
    branches: Sequence[int]
    fold_ratios: Sequence[float] = ()
    buckets: Sequence[int] = (4,)
    implementations: Sequence[str] = ("default",)
    profile: bool = False


def sections(asked: ForwardBench, settings: Settings) -> list[Section]:
    """The measurements, geometry by geometry."""
    return [
        _section(name, rows, drafts, fold, implementation, asked.profile, settings)
        for name in asked.geometries
        for rows in asked.rows
        for drafts in asked.branches
        for fold in _folds(asked, drafts)
        for implementation in asked.implementations
    ]


def _folds(asked: ForwardBench, drafts: int) -> Iterator[dict[str, Any]]:
    yield {}
    if drafts:
        for ratio in asked.fold_ratios:
            for buckets in asked.buckets:
                yield {"fold_ratio": ratio, "buckets": buckets}


def _section(
    name: str,
    rows: int,
    drafts: int,
    fold: dict[str, Any],
    implementation: str,
    profile: bool,
    settings: Settings,
) -> Section:
    shape = {"dtype": settings.dtype, "rows": rows, "cache_tokens": settings.cache_tokens}
    computed_rows = rows * (1 + drafts) - round(fold.get("fold_ratio", 0) * rows * drafts)
    known: Row = {
        "geometry": name,
        "path": "folded" if fold else "dense" if drafts else "vanilla",
        "implementation": implementation,
        "branches": drafts,
        "fold_ratio": fold.get("fold_ratio"),
        "rows": computed_rows,
        "microseconds": None,
        "spread": None,
        "weight_floor_microseconds": None,
        "settings": {"weights": "random", "xla_flags": settings.xla_flags, **shape, **fold},
    }
    arguments = {"name": name, "branches": drafts, **shape, **fold, **settings.timing, "profile": profile}
    if implementation != "default":
        arguments["implementation"] = "triton" if implementation == "pallas" else implementation
    return Section(known, "bench.forward_step", arguments, _row)


def _row(known: Row, measured: dict[str, Any], bandwidth: float | None) -> Row:
    return {
        "implementation": measured["implementation"],
        "microseconds": round(measured["seconds"] * 1e6, 2),
        "spread": round(measured["spread"], 3),
        **floors(measured, bandwidth),
        "shares": measured["shares"],
    }
