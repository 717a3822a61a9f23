"""The rows of one model, method and settings, a procedural task each, as one row."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable

from bench.results import Row
from bench.tasks import TASK_NAMES


def summarize(rows: Iterable[Row]) -> list[Row]:
    """One row for all tasks of a measurement.

    Its `accuracies` (by task) hold what was measured, `mean_accuracy` is their mean where no task is missing, rates are
    totals over totals, and `identical_to_baseline` is a share of all answers where every task was compared. Rows that
    failed are left out.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if "error" not in row:
            same = [row[key] for key in ("model", "method", "settings", "problems")]
            groups.setdefault(json.dumps(same, sort_keys=True), []).append(row)
    return [_summary(group) for group in groups.values()]


def _summary(rows: list[Row]) -> Row:
    accuracies = {row["task"]: row["accuracy"] for row in rows}
    tokens = [row["tokens_per_forward"] * row["forwards"] for row in rows]
    seconds = [count / row["tokens_per_second"] for count, row in zip(tokens, rows, strict=True)]
    whole = all(task in accuracies for task in TASK_NAMES)
    return {
        **rows[0],
        "accuracies": accuracies,
        "mean_accuracy": sum(accuracies.values()) / len(accuracies) if whole else None,
        "tokens_per_forward": sum(tokens) / sum(row["forwards"] for row in rows),
        "tokens_per_second": sum(tokens) / sum(seconds),
        "identical_to_baseline": _identical(rows),
    }


def _identical(rows: list[Row]) -> float | None:
    """Share of all answers that equal the baseline's."""
    shares = [row["identical_to_baseline"] for row in rows]
    problems = [row["problems"] for row in rows]
    return None if None in shares else sum(map(operator.mul, shares, problems)) / sum(problems)
