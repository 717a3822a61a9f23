"""Which kernel families a GPU spends its time in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

OURS = (
    "plan_rows",
    "normed_rows",
    "rotated_heads",
    "prefix_attention",
    "branch_attention",
    "add_through",
    "likeliest",
    "decode_attention",
)
PRODUCTS = ("nvjet", "gemm", "gemv", "sm90_xmma_gemm", "cutlass", "cublas")
"""How the names of matrix products begin: cuBLAS's kernels, and what XLA compiles in place of them."""


def kernel_family(name: str) -> str:
    """Of a kernel by its name: one of ours, "products", or "other"."""
    plain = name.removeprefix("void ")
    for family in OURS:
        if plain.startswith(family):
            return family
    return "products" if plain.startswith(PRODUCTS) else "other"


def device_shares(run: Callable[[], Any]) -> dict[str, float]:
    """By kernel family the share of the device's busy time while `run` runs; nothing without a GPU."""
    durations: dict[str, float] = defaultdict(float)
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        for file in Path(folder).rglob("*.xplane.pb"):
            for name, nanoseconds in _launches(file):
                durations[name] += nanoseconds
    return shares_of(durations)


def shares_of(durations: Mapping[str, float]) -> dict[str, float]:
    """By family the share of the kernels' durations, the largest first."""
    families: dict[str, float] = defaultdict(float)
    for name, duration in durations.items():
        families[kernel_family(name)] += duration
    total = sum(families.values())
    return {family: round(families[family] / total, 4) for family in sorted(families, key=lambda of: -families[of])}


def _launches(file: Path) -> Iterator[tuple[str, float]]:
    """Name and nanoseconds of every launch in a trace."""
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        if "GPU" in plane.name:
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    for event in line.events:
                        yield event.name, event.duration_ns
