"""Timing by difference, and the read bandwidth."""

from __future__ import annotations

import pytest

from bench.bandwidth import read_bandwidth
from bench.measure import SHORT, time_step, time_whole


def test_step_time_is_free_of_what_a_call_costs():
    asked = []

    def elapsed(steps: int) -> float:
        asked.append(steps)
        return 5.0 + 0.25 * steps

    timing = time_step(elapsed, steps=100, repeats=3)
    assert timing.seconds == pytest.approx(0.25)
    assert timing.spread == 1.0
    assert asked == [SHORT + 100] + [SHORT + 100, SHORT] * 3


def test_spread_is_largest_over_smallest():
    timing = time_whole([2.0, 8.0, 3.0])
    assert (timing.seconds, timing.spread) == (3.0, 4.0)


def test_steps_lost_in_noise_are_refused():
    with pytest.raises(RuntimeError, match="too short"):
        time_step(lambda steps: 1.0, steps=10, repeats=2)


def test_read_bandwidth_is_that_of_a_memory():
    assert 1e8 < read_bandwidth(2**24, repeats=3) < 1e13
