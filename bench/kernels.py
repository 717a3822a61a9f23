"""Each kernel family and each matrix product of a layer, alone, in every implementation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.measure import Timing
from bench.results import Row
from bench.run import Section, Settings, microseconds
from specdiff_jax.block_spec import block_spec
from specdiff_jax.errors import InputError
from specdiff_jax.geometries import geometry

ROW_KERNELS = ("plan_rows", "normed_rows", "branch_attention", "add_through", "likeliest")
PRODUCTS = ("qkv", "output", "gate_up", "down", "head")
GEOMETRIES = ("fdv2-1.5b", "fdv2-7b", "nld-3b", "nld-8b", "nld-14b")
IMPLEMENTATIONS = ("xla", "triton", "cublas")


@dataclass(frozen=True)
class KernelBench:
    """What to measure: every combination.

    Attributes:
        geometries: bundled shapes.
        counts: computed rows.
        slots: of a branch.
        drafts: beside main; where as many rows are computed as a branch has, main stands alone.
        implementations: of `IMPLEMENTATIONS`; "triton" has the row kernels alone, "cublas" the products.
    """

    geometries: Sequence[str]
    counts: Sequence[int] = (32, 134, 288)
    slots: int = 32
    drafts: int = 8
    implementations: Sequence[str] = IMPLEMENTATIONS

    def check(self) -> None:
        """Refuse what can't be measured.

        Raises:
            InputError: for the first such value.
        """
        for name in self.geometries:
            block_spec(geometry(name))
        for count in self.counts:
            path_of(count, self.slots, self.drafts)


def path_of(count: int, slots: int, drafts: int) -> str:
    """In which forward so many rows are computed: "vanilla" those of main alone, "dense" all, else "folded".

    Raises:
        InputError: in none.
    """
    rows = slots * (1 + drafts)
    if not slots <= count <= rows:
        raise InputError(f"--count {count}: from {slots} (main alone) to {rows} (main and all {drafts} drafts)")
    return "vanilla" if count == slots else "dense" if count == rows else "folded"


def sections(asked: KernelBench, settings: Settings) -> list[Section]:
    """The measurements, geometry by geometry: those of a library share a process."""
    return [
        section
        for name in asked.geometries
        for measured in (_ours(asked, name, settings), _cublas(asked, name, settings))
        for section in measured
    ]


def key_of(kernel: str, implementation: str, count: int) -> str:
    """Under which a measurement of many keeps one."""
    return f"{kernel} {implementation} {count}"


def timed(timing: Timing, ran: str, weight_bytes: int | None) -> dict[str, Any]:
    """What a measurement keeps of one: its time, what ran, and the bytes of weights or logits that it reads, if any."""
    return {**asdict(timing), "implementation": ran, "weight_bytes": weight_bytes}


def absent(reason: str) -> dict[str, Any]:
    """What it keeps of one that can't run here."""
    return {"seconds": None, "implementation": f"none: {reason}"}


def _ours(asked: KernelBench, name: str, settings: Settings) -> Iterator[Section]:
    implementations = [which for which in asked.implementations if which != "cublas"]
    shape = {
        "dtype": settings.dtype,
        "rows": asked.slots,
        "branches": asked.drafts,
        "cache_tokens": settings.cache_tokens,
    }
    arguments = {"name": name, "counts": list(asked.counts), "implementations": implementations, **shape}
    for count in asked.counts:
        path = path_of(count, asked.slots, asked.drafts)
        drafts = 0 if path == "vanilla" else asked.drafts
        for implementation in implementations:
            kernels = ROW_KERNELS if path == "folded" else ROW_KERNELS[1:]
            for kernel in (*kernels, *(PRODUCTS if implementation == "xla" else ())):
                about = {"dtype": settings.dtype} if kernel in PRODUCTS else {"path": path, **shape, "branches": drafts}
                known = _known(name, kernel, implementation, count, {"xla_flags": settings.xla_flags, **about})
                yield Section(known, "bench.kernel_step", {**arguments, **settings.timing}, _row)


def _cublas(asked: KernelBench, name: str, settings: Settings) -> Iterator[Section]:
    arguments = {"name": name, "dtype": settings.dtype, "counts": list(asked.counts), **settings.timing}
    for count in asked.counts if "cublas" in asked.implementations else ():
        for kernel in PRODUCTS:
            known = _known(name, kernel, "cublas", count, {"dtype": settings.dtype})
            yield Section(known, "bench.cublas", arguments, _row)


def _known(name: str, kernel: str, implementation: str, count: int, settings: dict[str, Any]) -> Row:
    return {
        "geometry": name,
        "kernel": kernel,
        "implementation": implementation,
        "rows": count,
        "microseconds": None,
        "spread": None,
        "weight_floor_microseconds": None,
        "settings": {"implementation": None, **settings},
    }


def _row(known: Row, measured: dict[str, Any], bandwidth: float | None) -> Row:
    mine = measured[key_of(known["kernel"], known["implementation"], known["rows"])]
    if "error" in mine:
        return mine
    settings = {**known["settings"], "implementation": mine["implementation"]}
    if mine["seconds"] is None:
        return {"settings": settings}
    time, size = mine["seconds"] * 1e6, mine["weight_bytes"]
    floor = None if size is None else microseconds(size, bandwidth)
    return {
        "microseconds": round(time, 2),
        "spread": round(mine["spread"], 3),
        "weight_floor_microseconds": floor,
        "settings": settings,
        "weight_bytes": size,
        "read_gigabytes_per_second": None if bandwidth is None else round(bandwidth / 1e9, 1),
        "ratio_to_floor": None if floor is None else round(time / floor, 3),
    }
