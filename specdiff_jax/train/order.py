"""Which rows each step sees: a shuffle of its own in every epoch, known from the seed alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Int32, Int64


def rows_of_steps(seed: int, rows: int, batch_rows: int, first: int, steps: int) -> Int32[np.ndarray, "steps batch"]:
    """The rows of some steps: in each epoch every row comes once, and a batch may end one epoch and begin the next.

    Args:
        seed: of the shuffles.
        rows: number of rows that there are.
        batch_rows: rows a step.
        first: the first step.
        steps: number of steps.
    """
    epochs, places = np.divmod(np.arange(first * batch_rows, (first + steps) * batch_rows), rows)
    chosen = [_shuffled(seed, rows, int(epoch))[places[epochs == epoch]] for epoch in np.unique(epochs)]
    return np.concatenate(chosen).astype(np.int32).reshape(steps, batch_rows)


@lru_cache(maxsize=2)
def _shuffled(seed: int, rows: int, epoch: int) -> Int64[np.ndarray, " rows"]:
    return np.random.default_rng([seed, epoch]).permutation(rows)
