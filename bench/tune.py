"""Which tiles and which row counts are best on this GPU, for the forwards of a geometry."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.capacities import best_capacities, mean_time
from bench.environment import Environment
from bench.run import Settings
from bench.section import measure_apart
from bench.tuned_file import Finding, add_findings, read_file
from pallas_kernels.triton import launch
from pallas_kernels.triton.attention import LONGEST_BRANCH, supports
from pallas_kernels.tuned_data import AttentionShape
from specdiff_jax.block_spec import block_spec
from specdiff_jax.config import ModelConfig
from specdiff_jax.decode.folding import capacities_of, layer_shape
from specdiff_jax.errors import InputError
from specdiff_jax.geometries import geometry

STEP = 16
"""Between the row counts that are tried."""


@dataclass(frozen=True)
class TuneBench:
    """What to tune.

    Attributes:
        geometries: bundled shapes of block-diffusion models.
        branches: numbers of drafts beside main; main alone is tuned in any case.
        rows: of a branch.
        buckets: how many row counts a folded layer is compiled for.
    """

    geometries: Sequence[str]
    branches: Sequence[int]
    rows: int
    buckets: int

    def check(self, environment: Environment) -> None:
        """Refuse what can't be measured.

        Raises:
            InputError: for the first such value.
        """
        if environment.gpu == "cpu" and not launch.INTERPRET:
            raise InputError("bench tune needs a GPU; without one nothing is tuned, and the heuristic decides")
        if self.rows > LONGEST_BRANCH:
            raise InputError(f"--rows {self.rows}: attention holds branches of up to {LONGEST_BRANCH}")
        for name in self.geometries:
            config = geometry(name)
            block_spec(config)
            if not supports(config.group_size, config.head_dim, "bfloat16"):
                raise InputError(f"--geometry {name}: the kernel of attention does not take its heads")

    def shapes(self, config: ModelConfig) -> list[AttentionShape]:
        """Of attention: that of vanilla decoding, then those of the verifications."""
        heads = config.num_kv_heads, self.rows, config.group_size, config.head_dim
        return [AttentionShape(1 + drafts, *heads) for drafts in (0, *self.branches)]

    def counts(self, drafts: int) -> set[int]:
        """Row counts of a verification that are tried: what is always needed, steps from there, and equal parts."""
        everything = (1 + drafts) * self.rows
        parts = (part for part in capacities_of(everything, self.buckets) if part >= self.rows)
        return {*range(self.rows, everything, STEP), *parts}

    def best_capacities(self, config: ModelConfig, drafts: int, times: Mapping[int, float]) -> Finding:
        """The best row counts of a verification.

        Args:
            config: of the geometry.
            drafts: beside main.
            times: of a layer's products, by row count.
        """
        everything = (1 + drafts) * self.rows
        tried = {count: times[count] for count in self.counts(drafts)}
        best = best_capacities(tried, self.rows, self.buckets)
        parts = capacities_of(everything, self.buckets)
        return Finding(
            layer_shape(config, everything, self.buckets),
            {"capacities": list(best)},
            mean_time(tried, best, self.rows),
            {"capacities": list(parts)},
            mean_time(tried, parts, self.rows),
        )


@dataclass(frozen=True)
class Tuned:
    """What came of a geometry.

    Attributes:
        geometry: its name.
        findings: the best of each shape.
        skipped: tiles that could not be timed, and why.
        error: why nothing was found.
    """

    geometry: str
    findings: Sequence[Finding] = ()
    skipped: Sequence[str] = ()
    error: str | None = None


def tune(
    asked: TuneBench, settings: Settings, environment: Environment, folder: Path, *, time_limit: float
) -> Iterator[Tuned]:
    """Measure one geometry after the other, each in a process of its own, and write what was found at once.

    Args:
        asked: what to tune.
        settings: how to time.
        environment: where this runs.
        folder: of the file.
        time_limit: seconds for all together.

    Raises:
        InputError: the folder can't be made, or the file that is there can't be read or breaks a rule of the format.
    """
    deadline = time.monotonic() + time_limit
    _check_folder(folder, environment.gpu)
    for name in asked.geometries:
        config = geometry(name)
        shapes, counts = asked.shapes(config), sorted(set().union(*map(asked.counts, asked.branches)))
        arguments = {"name": name, "shapes": shapes, "counts": counts, "cache_tokens": settings.cache_tokens}
        measured = measure_apart(
            "bench.tune_step",
            {**arguments, **settings.timing},
            seconds=deadline - time.monotonic(),
            flags=settings.xla_flags,
        )
        if "error" in measured:
            yield Tuned(name, error=measured["error"])
            continue
        tried = list(zip(shapes, measured["attention"], strict=True))
        times = {count: seconds * 1e6 for count, seconds in zip(counts, measured["layer"], strict=True)}
        findings = [
            *(best_tiles(shape, timed) for shape, timed in tried),
            *(asked.best_capacities(config, drafts, times) for drafts in asked.branches),
        ]
        add_findings(folder, environment, findings)
        yield Tuned(name, findings, [line for shape, timed in tried for line in _skipped(shape, timed)])


def _check_folder(folder: Path, gpu: str) -> None:
    """Before anything takes time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder}: can't be made ({error.strerror})") from error
    read_file(folder / f"{gpu}.json")


def best_tiles(shape: AttentionShape, timed: Sequence[Mapping[str, Any]]) -> Finding:
    """The fastest tiles.

    Args:
        shape: that was timed.
        timed: tiles with seconds, or an error; the heuristic's first, with seconds.
    """
    heuristic = timed[0]
    best = min((each for each in timed if "seconds" in each), key=lambda each: each["seconds"])
    return Finding(shape, best["tiles"], best["seconds"] * 1e6, heuristic["tiles"], heuristic["seconds"] * 1e6)


def _skipped(shape: AttentionShape, timed: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in timed:
        if "error" in each:
            yield f"{words(shape._asdict())}: no tiles of {words(each['tiles'])}: {each['error']}"


def table_rows(tuned: Tuned) -> list[dict[str, Any]]:
    """What was found, as rows of a table."""
    return [
        {
            "geometry": tuned.geometry,
            "shape": words(finding.shape._asdict()),
            "heuristic": words(finding.heuristic),
            "heuristic_microseconds": finding.heuristic_microseconds,
            "best": words(finding.best),
            "microseconds": finding.microseconds,
            "kept": finding.kept,
        }
        for finding in tuned.findings
    ]


def words(numbers: Mapping[str, Any]) -> str:
    """What they are, in one line."""
    return ", ".join(f"{name} {value}" for name, value in numbers.items())
