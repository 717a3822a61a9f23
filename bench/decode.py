"""Decode throughput: our loop and those of Transformers, step by step, and answers from end to end."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.results import Row
from bench.run import Section, Settings, floors
from bench.tasks import TASK_NAMES
from specdiff_jax.decode.methods import Vanilla
from specdiff_jax.decode.sampling import sampling
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

TEST_SEED = 0
"""Of the problems that are measured; training draws never meet them, whatever their seed."""

METHODS = ("autoregressive", "vanilla", "spiffy", "dflash", *BASELINES)
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
        tasks: procedural tasks whose test problems every model answers and is scored on.
        problems: of each task.
        threshold: of block diffusion.
        max_new_tokens: most new tokens a prompt.
        drafter: of dflash.
        block_size: tokens of its verifications; None is what the drafter was trained for.
        temperature: of whole answers; 0 is greedy.
    """

    geometries: Sequence[str]
    models: Sequence[str]
    batches: Sequence[int]
    methods: Sequence[str]
    devices: int = 1
    prompts: Path | None = None
    tasks: Sequence[str] = ()
    problems: int = 500
    threshold: float = 0.9
    max_new_tokens: int = 128
    drafter: str | None = None
    block_size: int | None = None
    temperature: float = 0.0

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
        Vanilla(self.threshold)
        if self.prompts is not None:
            read_prompts(self.prompts)
        unknown_tasks = [task for task in self.tasks if task not in TASK_NAMES]
        if unknown_tasks:
            raise InputError(f"no task {unknown_tasks[0]!r}; there are {', '.join(TASK_NAMES)}")
        if (self.prompts is not None or self.tasks) and not self.models:
            raise InputError("--prompts and --task need a model that can answer: give --model")
        if "spiffy" in self.methods and self.geometries:
            raise InputError("method spiffy needs models with a draft graph of their own: give --model, no --geometry")
        self._check_drafter()
        sampling(self.temperature, 1.0, 0, 1)
        baselines = [method for method in self.methods if method in BASELINES]
        if baselines and self.geometries and not all(map(importlib.util.find_spec, ("torch", "transformers"))):
            raise InputError(f"method {baselines[0]} needs torch and transformers: pip install 'specdiff-jax[check]'")

    def _check_drafter(self) -> None:
        if "dflash" not in self.methods:
            for flag, value in (("--drafter", self.drafter), ("--block-size", self.block_size)):
                if value is not None:
                    raise InputError(f"{flag} has no effect without --method dflash: leave it out")
        elif self.geometries:
            raise InputError("method dflash needs models with their own weights: give --model, no --geometry")
        elif self.drafter is None:
            raise InputError("method dflash needs a drafter that was made for the model: give one with --drafter")
        elif self.prompts is None and not self.tasks:
            raise InputError("method dflash is measured on whole answers: give --prompts or --task")


def sections(bench: DecodeBench, settings: Settings) -> list[Section]:
    """The measurements, in order: a model's own rows stand together, ours first."""
    targets = [(name, True) for name in bench.geometries] + [(name, False) for name in bench.models]
    planned = []
    for name, random in targets:
        for method in bench.methods:
            for batch in bench.batches:
                if method in BASELINES:
                    planned += [_baseline_step(settings, name, method, batch)] * random
                elif method == "autoregressive":
                    planned.append(_our_step(bench, settings, name, random, batch))
                elif random:
                    source = {"random": settings.cache_tokens}
                    planned.append(_answers(bench, settings, name, random, method, batch, "random ids", source))
        for method in (method for method in bench.methods if method not in BASELINES and not random):
            for batch in bench.batches:
                for task, source in _sources(bench):
                    planned.append(_answers(bench, settings, name, random, method, batch, task, source))
    return planned


def _sources(bench: DecodeBench) -> list[tuple[str, dict[str, Any]]]:
    """What models answer: name of the task, and the source as `bench.answers` takes it."""
    files = [] if bench.prompts is None else [("prompts", {"file": str(bench.prompts)})]
    drawn = [(task, {"task": task, "count": bench.problems, "seed": TEST_SEED}) for task in bench.tasks]
    return [*files, *drawn]


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


def _answers(
    bench: DecodeBench,
    settings: Settings,
    name: str,
    random: bool,
    method: str,
    batch: int,
    task: str,
    source: dict[str, Any],
) -> Section:
    asked = {"dtype": settings.dtype, "devices": bench.devices, "batch": batch, "max_new_tokens": bench.max_new_tokens}
    flags = _flags(bench, method)
    if bench.temperature:
        asked["temperature"] = bench.temperature
    about = {"weights": _weights(random), "xla_flags": settings.xla_flags, **_named(source), **asked, **flags}
    if method == "dflash":
        about["drafter"] = Path(flags["drafter"]).name  # not where it lies
    arguments = {"name": name, "random": random, "method": method, "flags": flags, "source": source, **asked}
    arguments["repeats"] = settings.repeats
    return Section(_known(name, task, method, about), "bench.answers", arguments, _answers_row)


def _flags(bench: DecodeBench, method: str) -> dict[str, Any]:
    """The method's own settings, as `MethodFlags` has them."""
    if method == "dflash":
        return {"drafter": bench.drafter, "block_size": bench.block_size}
    return {"threshold": bench.threshold} if method in ("vanilla", "spiffy") else {}


def _named(source: dict[str, Any]) -> dict[str, Any]:
    """What of a source tells rows apart: not where its file lies."""
    if "file" in source:
        return {"prompts": Path(source["file"]).name}
    return {"prompt_tokens": source["random"]} if "random" in source else {"seed": source["seed"]}


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
        "accuracy": _rounded(measured["accuracy"]),
        "forwards": measured["forwards"],
        "tokens_per_forward": round(measured["new_tokens"] / measured["forwards"], 4),
        "tokens_per_second": round(measured["new_tokens"] / measured["seconds"], 1),
        "acceptance_length": _rounded(measured["acceptance_length"]),
        "fold_ratio": _rounded(measured["fold_ratio"]),
        "repetitive_share": _rounded(measured["repetitive_share"]),
        "identical_to_baseline": _rounded(measured["identical_to_baseline"]),
        "pooled_acceptance_length": _rounded(measured["pooled_acceptance_length"]),
        "spread": round(measured["spread"], 3),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
