"""Device-side timing: how long one step of a loop takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

SHORT = 8
"""Steps of the shorter run. What a call costs whatever its length (launch, dispatch, first touch) is in both runs."""


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one thing.

    Attributes:
        seconds: of one thing, from medians.
        spread: the longest run over the shortest.
    """

    seconds: float
    spread: float


def time_whole(runs: list[float]) -> Timing:
    """Median and spread of repeated runs, given in seconds."""
    return Timing(statistics.median(runs), max(runs) / min(runs))


def time_step(elapsed: Callable[[int], float], *, steps: int, repeats: int) -> Timing:
    """Seconds of one step by difference: (t(SHORT + steps) - t(SHORT)) / steps, with the median of each.

    Args:
        elapsed: runs so many steps in one call and returns its seconds, waiting for the device at both ends.
        steps: steps that the longer run does more.
        repeats: runs of each length.

    Raises:
        RuntimeError: the difference is lost in the noise of the clock.
    """
    elapsed(SHORT + steps)  # warm-up
    runs = [(elapsed(SHORT + steps), elapsed(SHORT)) for _ in range(repeats)]
    long = time_whole([seconds for seconds, _ in runs])
    short = time_whole([seconds for _, seconds in runs])
    if long.seconds <= short.seconds:
        raise RuntimeError("the steps are too short to be timed: measure more of them")
    return Timing((long.seconds - short.seconds) / steps, long.spread)


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until the result of `call` is there, and the result."""
    began = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - began, result
