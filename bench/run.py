"""A benchmark is a list of sections; each is measured apart, becomes one row, and is written at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.environment import Environment
from bench.results import Row, add_rows
from bench.section import measure_apart


@dataclass(frozen=True)
class Settings:
    """What every section of a run has in common.

    Attributes:
        dtype: of weights and activations.
        cache_tokens: tokens of each row when the timing begins.
        steps: steps that are timed in one go.
        repeats: how often they are timed.
        flags: what is added to XLA_FLAGS for our own side.
    """

    dtype: str = "bfloat16"
    cache_tokens: int = 512
    steps: int = 100
    repeats: int = 7
    flags: str = ""

    @property
    def timing(self) -> dict[str, int]:
        """How to time, as the sections take it."""
        return {"steps": self.steps, "repeats": self.repeats}

    @property
    def xla_flags(self) -> str:
        """XLA_FLAGS of our own side: those of the environment, then the added ones."""
        return f"{os.environ.get('XLA_FLAGS', '')} {self.flags}".strip()


@dataclass(frozen=True)
class Section:
    """One measurement that becomes one row; neighbours that ask for the same share it, and take what is theirs.

    Attributes:
        known: what of the row is known before; the rest is null until it is measured.
        module: where its `measure` is.
        arguments: for `measure`.
        row: the rest of the row from what is known, what was measured and the read bandwidth (None where that failed);
            not called where the measurement failed.
    """

    known: Row
    module: str
    arguments: dict[str, Any]
    row: Callable[[Row, dict[str, Any], float | None], Row]


def run_sections(
    name: str,
    sections: Iterable[Section],
    settings: Settings,
    environment: Environment,
    folder: Path,
    *,
    time_limit: float,
    on_row: Callable[[Row], None],
) -> list[Row]:
    """Measure the read bandwidth, then every section, and write each row into the result file `name` at once.

    A section that fails, or has no time left, becomes a row with its "error"; the next one goes on.

    Args:
        name: of the result file.
        sections: what to measure, in order.
        settings: what they have in common.
        environment: where this runs.
        folder: for results.
        time_limit: seconds for all together.
        on_row: called with each row.
    """
    deadline = time.monotonic() + time_limit

    def apart(module: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return measure_apart(module, arguments, seconds=deadline - time.monotonic(), flags=settings.xla_flags)

    bandwidth = apart("bench.bandwidth", {"repeats": settings.repeats}).get("bytes_per_second")
    rows = []
    for (module, arguments), alike in groupby(sections, key=lambda section: (section.module, section.arguments)):
        measured = apart(module, arguments)
        for section in alike:
            rest = measured if "error" in measured else section.row(section.known, measured, bandwidth)
            row = {**section.known, **rest}
            add_rows(folder, name, environment, [row])
            on_row(row)
            rows.append(row)
    return rows


def floors(measured: dict[str, Any], bandwidth: float | None) -> Row:
    """What reading the weights would take, alone and with the cache, and how far the time is above the former."""
    floor = microseconds(measured["weight_bytes"], bandwidth)
    return {
        "read_gigabytes_per_second": None if bandwidth is None else round(bandwidth / 1e9, 1),
        "weight_bytes": measured["weight_bytes"],
        "cache_bytes": measured["cache_bytes"],
        "weight_floor_microseconds": floor,
        "weight_and_cache_floor_microseconds": microseconds(
            measured["weight_bytes"] + measured["cache_bytes"], bandwidth
        ),
        "ratio_to_floor": None if floor is None else round(measured["seconds"] * 1e6 / floor, 3),
    }


def microseconds(size: int, bandwidth: float | None) -> float | None:
    """Time to read `size` bytes."""
    return None if bandwidth is None else round(size / bandwidth * 1e6, 2)
