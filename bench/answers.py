"""Answering prompts from end to end, as a user sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import specdiff_jax as sd
from bench.measure import time_whole
from bench.target import implementation, open_target
from bench.tasks import Problem, problems, score
from specdiff_jax.cli.methods import MethodFlags, MethodName, build_method
from specdiff_jax.decode.methods import Method
from specdiff_jax.decode.requests import Prompt
from specdiff_jax.prompts import read_prompts

_GRAM, _SHORTEST, _REPEATED = 8, 40, 0.3


@dataclass(frozen=True)
class _Source:
    """What is asked, and what a right answer is, where that is known."""

    prompts: Sequence[Prompt]
    problems: Sequence[Problem] | None = None


def measure(
    name: str,
    random: bool,
    dtype: str,
    devices: int,
    batch: int,
    method: MethodName,
    flags: dict[str, Any],
    source: dict[str, Any],
    max_new_tokens: int,
    repeats: int,
    temperature: float = 0.0,
) -> dict[str, Any]:
    """Answer every prompt of a source `repeats` times, after a first time that compiles.

    Args:
        name: of the model.
        random: whether the name is that of a geometry, whose weights are random; no answer then ends early.
        dtype: of weights and activations.
        devices: that each layer is spread over.
        batch: prompts side by side.
        method: as `--method` has it.
        flags: the method's settings, as in `MethodFlags`.
        source: {"file": path}, {"task": name, "count": number, "seed": number}, or {"random": tokens}: as many prompts
            of so many random ids as the batch has rows.
        max_new_tokens: most new tokens a prompt.
        repeats: how often all is answered.
        temperature: 0 is greedy.

    Returns:
        what ran, seconds of all batches together, prefills included, with their spread; totals of forwards and new
        tokens; means over the answers of what the method counts, and the acceptance length over all verifications;
        shares of right, of repetitive, and of answers that equal those of the method's baseline at the same dtype,
        batch and seed.
    """
    model = open_target(name, random=random, dtype=dtype, devices=devices)
    if random:
        model = dataclasses.replace(model, stop_ids=())
    asked = _open_source(source, batch, model.config.vocab_size, model.config.mask_token_id)
    chosen = build_method(method, MethodFlags(**flags), name)(model)

    def answer(method: Method = chosen) -> list[sd.Generation]:
        return sd.generate(
            model, asked.prompts, method, max_new_tokens=max_new_tokens, batch_size=batch, temperature=temperature
        )

    answers = answer()
    baseline = answer(chosen.baseline) if isinstance(chosen, sd.Spiffy | sd.DFlash) else None
    timing = time_whole([sum(result.seconds for result in answer()[::batch]) for _ in range(repeats)])
    right = None if asked.problems is None else score(asked.problems, [result.text for result in answers])
    return {
        "implementation": implementation(model),
        "seconds": timing.seconds,
        "spread": timing.spread,
        "problems": len(answers),
        "accuracy": None if right is None else sum(right) / len(right),
        "forwards": sum(result.forwards for result in answers),
        "new_tokens": sum(result.new_tokens for result in answers),
        "acceptance_length": _mean([result.acceptance_length for result in answers]),
        "pooled_acceptance_length": _pooled(answers),
        "fold_ratio": _mean([result.fold_ratio for result in answers]),
        "repetitive_share": sum(is_repetitive(result.tokens) for result in answers) / len(answers),
        "identical_to_baseline": None
        if baseline is None
        else sum(ours.tokens == theirs.tokens for ours, theirs in zip(answers, baseline, strict=True)) / len(answers),
    }


def is_repetitive(tokens: Sequence[int]) -> bool:
    """Whether an answer of at least 40 tokens repeats itself: over 30 % of its 8-grams occurred before in it."""
    grams = [tuple(tokens[begin : begin + _GRAM]) for begin in range(len(tokens) - _GRAM + 1)]
    return len(tokens) >= _SHORTEST and 1 - len(set(grams)) / len(grams) > _REPEATED


def _open_source(source: dict[str, Any], batch: int, vocab_size: int, mask: int | None) -> _Source:
    if "file" in source:
        return _Source([entry.prompt for entry in read_prompts(Path(source["file"]))])
    if "task" in source:
        drawn = problems(source["task"], "test", source["seed"], source["count"])
        return _Source([problem.prompt for problem in drawn], drawn)
    ids = np.random.default_rng(0).integers(vocab_size - 1, size=(batch, source["random"]))
    if mask is not None:
        ids += ids >= mask  # any id but the mask
    return _Source(ids.tolist())


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _pooled(answers: Sequence[sd.Generation]) -> float | None:
    """Committed tokens per verification of all answers together; each answer's first token is the prefill's."""
    drafted = [answer for answer in answers if answer.acceptance_length is not None]
    verifications = sum(answer.forwards for answer in drafted)
    return sum(answer.new_tokens - 1 for answer in drafted) / verifications if drafted else None
