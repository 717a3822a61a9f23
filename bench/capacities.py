"""Which row counts a layer is compiled for, from the time that each takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def best_capacities(times: Mapping[int, float], least: int, buckets: int) -> tuple[int, ...]:
    """Those of the row counts, the largest one always, of which `mean_time` is least.

    They are fewer than `buckets` where more would not help, as a larger count may take less time. Dynamic programming:
    the best capacities up to a count are it alone, or the best ones with one less up to a smaller count, and it.

    Args:
        times: of every row count that may be chosen, from `least` on.
        least: rows that are always needed.
        buckets: how many counts at most.
    """
    counts = sorted(times)
    alone = {count: ((count - least + 1) * times[count], (count,)) for count in counts}
    best: dict[int, tuple[float, tuple[int, ...]]] = {**alone}

    def after(below: int, count: int) -> tuple[float, tuple[int, ...]]:
        total, capacities = best[below]
        return total + (count - below) * times[count], (*capacities, count)

    for _ in range(buckets - 1):
        best = {
            count: min([alone[count], *(after(below, count) for below in counts if below < count)]) for count in counts
        }
    return best[counts[-1]][1]


def mean_time(times: Mapping[int, float], capacities: Sequence[int], least: int) -> float:
    """Mean time where each number of rows from `least` to the last capacity is needed equally often, and the smallest
    capacity that holds them is computed.
    """
    below, total = least - 1, 0.0
    for capacity in capacities:
        if capacity >= least:
            total += (capacity - below) * times[capacity]
            below = capacity
    return total / (capacities[-1] - least + 1)
