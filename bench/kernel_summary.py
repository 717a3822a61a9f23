"""The rows of one kernel, an implementation each, as one row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from bench.kernels import PRODUCTS, ROW_KERNELS
from bench.results import Row

_NOT_ASKED = ("implementation", "xla_flags")
"""Settings that tell of the measurement, not of what is measured."""


def side_by_side(other: str) -> Callable[[Iterable[Row]], list[Row]]:
    """A gatherer of rows: one for each kernel and number of rows, through XLA and in another implementation.

    It holds the row of each under `by`, and the other's time over XLA's as `ratio`, None where one was not measured.
    """

    def gather(rows: Iterable[Row]) -> list[Row]:
        groups: dict[str, dict[str, Row]] = {}
        for row in rows:
            asked = {key: value for key, value in row["settings"].items() if key not in _NOT_ASKED}
            same = json.dumps([row["geometry"], row["kernel"], row["rows"], asked], sort_keys=True)
            groups.setdefault(same, {})[row["implementation"]] = row
        return [_joined(group, other) for group in groups.values()]

    return gather


def order(row: Row) -> Any:
    """By geometry, and then as a layer runs its kernels."""
    return row["geometry"], (*ROW_KERNELS, *PRODUCTS).index(row["kernel"]), row["rows"]


def _joined(group: dict[str, Row], other: str) -> Row:
    ours, theirs = (group.get(name, {}).get("microseconds") for name in ("xla", other))
    one = next(iter(group.values()))
    return {**one, "by": group, "ratio": None if ours is None or theirs is None else theirs / ours}
