"""What drafting costs: a draft and its verification beside a step of autoregressive decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.results import Row
from bench.run import Section, Settings, microseconds
from specdiff_jax.drafter_config import DrafterConfig
from specdiff_jax.errors import InputError
from specdiff_jax.geometries import drafter_geometry

PARTS = ("autoregressive", "draft", "verify", "cycle")
"""What is timed: a step of autoregressive decoding, a draft, its verification, and both with all that the loop does."""


@dataclass(frozen=True)
class DraftingBench:
    """What to measure.

    Attributes:
        geometries: bundled shapes of targets, each with a bundled drafter.
        width: tokens of a verification.
    """

    geometries: Sequence[str]
    width: int = 16

    def check(self, settings: Settings) -> None:
        """Refuse what can't be measured.

        Raises:
            InputError: naming it.
        """
        for name in self.geometries:
            trained = drafter_of(name).block_size
            if not 2 <= self.width <= trained:
                raise InputError(
                    f"--width {self.width}: {drafter_name(name)} drafts blocks of {trained}, so give 2 to {trained}"
                )
        if settings.cache_tokens <= self.width:
            raise InputError(f"--cache-tokens {settings.cache_tokens}: give more than the {self.width} of --width")


def drafter_name(geometry: str) -> str:
    """Name of the bundled shape of a target's drafter."""
    return f"{geometry}-b16"


def drafter_of(geometry: str) -> DrafterConfig:
    """Settings of that drafter.

    Raises:
        InputError: the target has none.
    """
    return drafter_geometry(drafter_name(geometry))


def sections(asked: DraftingBench, settings: Settings) -> list[Section]:
    """The measurements, geometry by geometry."""
    return [_section(name, asked.width, settings) for name in asked.geometries]


def _section(name: str, width: int, settings: Settings) -> Section:
    about = {"weights": "random", "xla_flags": settings.xla_flags, "dtype": settings.dtype}
    known: Row = {
        "geometry": name,
        "width": width,
        "prefix": settings.cache_tokens,
        **{f"{part}_microseconds": None for part in PARTS},
        "overhead": None,
        "settings": {"implementation": None, "drafter": drafter_name(name), **about},
    }
    shape = {"dtype": settings.dtype, "width": width, "cache_tokens": settings.cache_tokens}
    return Section(known, "bench.drafting_step", {"name": name, **shape, **settings.timing}, _row)


def _row(known: Row, measured: dict[str, Any], bandwidth: float | None) -> Row:
    seconds, sizes = measured["seconds"], measured["weight_bytes"]
    return {
        **{f"{part}_microseconds": round(seconds[part] * 1e6, 2) for part in PARTS},
        "overhead": _overhead(seconds),
        "settings": {**known["settings"], "implementation": measured["implementation"]},
        "spread": round(measured["spread"], 3),
        "read_gigabytes_per_second": None if bandwidth is None else round(bandwidth / 1e9, 1),
        **{f"{part}_weight_bytes": size for part, size in sizes.items()},
        **{f"{part}_floor_microseconds": microseconds(size, bandwidth) for part, size in sizes.items()},
        "floor_overhead": _overhead(sizes),
    }


def _overhead(of: dict[str, Any]) -> float:
    """Draft and verification over a step of autoregressive decoding."""
    return round((of["draft"] + of["verify"]) / of["autoregressive"], 4)
