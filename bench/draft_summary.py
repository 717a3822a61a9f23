"""The rows of one kind of draft graph, a budget each, as one row."""

from __future__ import annotations

import json
from collections.abc import Iterable

from bench.results import Row


def budgets_side_by_side(rows: Iterable[Row]) -> list[Row]:
    """One row for all budgets of a measurement.

    Its `saved` (by budget) are the shares of vanilla forwards that were saved, and `identical` is the share of answers,
    over all budgets, that equal those of vanilla decoding.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        settings = {key: value for key, value in row["settings"].items() if key != "budget"}
        same = [row["model"], row["method"], settings, row["problems"]]
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(row)
    return [
        {
            **group[0],
            "saved": {row["settings"]["budget"]: row["forwards_saved"] for row in group},
            "identical": sum(row["identical_to_baseline"] for row in group) / len(group),
        }
        for group in groups.values()
    ]
