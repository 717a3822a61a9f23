"""Answering prompts from end to end, as a user sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import specdiff_jax as sd
from bench.measure import time_whole
from bench.target import implementation, open_target
from specdiff_jax.prompts import read_prompts


def measure(
    name: str, dtype: str, devices: int, batch: int, prompts: str, max_new_tokens: int, repeats: int
) -> dict[str, Any]:
    """Answer every prompt of a file `repeats` times, greedily, after a first time that compiles.

    Returns:
        what ran, seconds of all batches together, prefills included, with their spread, and totals of forwards and new
        tokens.
    """
    model = open_target(name, random=False, dtype=dtype, devices=devices)
    entries = [entry.prompt for entry in read_prompts(Path(prompts))]

    def answer() -> list[sd.Generation]:
        return sd.generate(model, entries, sd.Autoregressive(), max_new_tokens=max_new_tokens, batch_size=batch)

    answers = answer()
    timing = time_whole([sum(result.seconds for result in answer()[::batch]) for _ in range(repeats)])
    return {
        "implementation": implementation(model),
        "seconds": timing.seconds,
        "spread": timing.spread,
        "problems": len(answers),
        "forwards": sum(result.forwards for result in answers),
        "new_tokens": sum(result.new_tokens for result in answers),
    }
