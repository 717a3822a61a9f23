"""Decode throughput: our loop and those of Transformers, step by step, and prompts from end to end."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.results import Row
from bench.run import Section, Settings, floors
from specdiff_jax.errors import InputError
from specdiff_jax.geometries import geometry
from specdiff_jax.prompts import read_prompts

BASELINES = {
    "transformers-eager": "eager",
    "transformers-compiled": "compiled",
    "transformers-max-autotune": "max-autotune",
    "transformers-generate": "generate",
}
"""Methods that Transformers runs, and the mode that `bench.transformers_baseline` calls each."""

METHODS = ("autoregressive", *BASELINES)
NULLS: Row = dict.fromkeys(
    (
        "problems",
        "accuracy",
        "forwards",
        "tokens_per_forward",
        "tokens_per_second",
        "acceptance_length",
        "fold_ratio",
        "repetitive_share",
        "identical_to_baseline",
    )
)


@dataclass(frozen=True)
class DecodeBench:
    """What to measure.

    Attributes:
        geometries: bundled shapes, measured with random weights, the only ones that the baselines run.
        models: models with their own weights.
        batches: rows side by side.
        methods: of `METHODS`.
        devices: GPUs that our side spreads each layer over.
        prompts: a file of prompts that every model answers; None for none.
        max_new_tokens: most new tokens a prompt.
    """

    geometries: Sequence[str]
    models: Sequence[str]
    batches: Sequence[int]
    methods: Sequence[str]
    devices: int = 1
    prompts: Path | None = None
    max_new_tokens: int = 128

    def check(self) -> None:
        """Refuse what can't be measured.

        Raises:
            InputError: naming it.
        """
        if not self.geometries and not self.models:
            raise InputError("nothing to measure: give --geometry or --model")
        for name in self.geometries:
            geometry(name)
        unknown = [method for method in self.methods if method not in METHODS]
        if unknown:
            raise InputError(f"no method {unknown[0]!r} to measure; there are {', '.join(METHODS)}")
        if self.prompts is not None:
            read_prompts(self.prompts)
            if not self.models:
                raise InputError("--prompts needs a model that can answer: give --model")
        baselines = [method for method in self.methods if method in BASELINES]
        if baselines and self.geometries and not all(map(importlib.util.find_spec, ("torch", "transformers"))):
            raise InputError(f"method {baselines[0]} needs torch and transformers: pip install 'specdiff-jax[check]'")


def sections(bench: DecodeBench, settings: Settings) -> list[Section]:
    """The measurements, in order: a model's own rows stand together, ours first."""
    targets = [(name, True) for name in bench.geometries] + [(name, False) for name in bench.models]
    planned = []
    for name, random in targets:
        for method in bench.methods:
            for batch in bench.batches:
                if method == "autoregressive":
                    planned.append(_our_step(bench, settings, name, random, batch))
                elif random:
                    planned.append(_baseline_step(settings, name, method, batch))
        if bench.prompts is not None and not random:
            planned += [_answers(bench, settings, name, batch, bench.prompts) for batch in bench.batches]
    return planned


def _our_step(bench: DecodeBench, settings: Settings, name: str, random: bool, batch: int) -> Section:
    shape = {"dtype": settings.dtype, "devices": bench.devices, "batch": batch, "cache_tokens": settings.cache_tokens}
    about = {"weights": _weights(random), "xla_flags": settings.xla_flags, **shape}
    arguments = {"name": name, "random": random, **shape, **settings.timing}
    return Section(_known(name, "step", "autoregressive", about), "bench.decode_step", arguments, _step_row)


def _baseline_step(settings: Settings, name: str, method: str, batch: int) -> Section:
    shape = {"dtype": settings.dtype, "batch": batch, "cache_tokens": settings.cache_tokens}
    about = {"weights": _weights(random=True), "devices": 1, **shape}
    arguments = {"name": name, "mode": BASELINES[method], **shape, **settings.timing}
    return Section(_known(name, "step", method, about), "bench.transformers_baseline", arguments, _step_row)


def _answers(bench: DecodeBench, settings: Settings, name: str, batch: int, prompts: Path) -> Section:
    asked = {"dtype": settings.dtype, "devices": bench.devices, "batch": batch, "max_new_tokens": bench.max_new_tokens}
    about = {"weights": _weights(random=False), "xla_flags": settings.xla_flags, "prompts": prompts.name, **asked}
    arguments = {"name": name, "prompts": str(prompts), "repeats": settings.repeats, **asked}
    return Section(_known(name, "prompts", "autoregressive", about), "bench.prompt_answers", arguments, _answers_row)


def _weights(random: bool) -> str:
    return "random" if random else "the model's own"


def _known(model: str, task: str, method: str, settings: dict[str, Any]) -> Row:
    return {"model": model, "task": task, "method": method, "settings": {"implementation": None, **settings}, **NULLS}


def _ran(known: Row, measured: dict[str, Any]) -> dict[str, Any]:
    return {**known["settings"], "implementation": measured["implementation"]}


def _step_row(known: Row, measured: dict[str, Any], bandwidth: float | None) -> Row:
    return {
        "settings": _ran(known, measured),
        "tokens_per_second": round(known["settings"]["batch"] / measured["seconds"], 1),
        "step_microseconds": round(measured["seconds"] * 1e6, 2),
        "spread": round(measured["spread"], 3),
        **floors(measured, bandwidth),
        "cuda_graphs_skipped": measured.get("cuda_graphs_skipped"),
    }


def _answers_row(known: Row, measured: dict[str, Any], bandwidth: float | None) -> Row:
    return {
        "settings": _ran(known, measured),
        "problems": measured["problems"],
        "forwards": measured["forwards"],
        "tokens_per_forward": round(measured["new_tokens"] / measured["forwards"], 4),
        "tokens_per_second": round(measured["new_tokens"] / measured["seconds"], 1),
        "spread": round(measured["spread"], 3),
    }
