"""Which implementation of an op runs where."""

from __future__ import annotations

from typing import Literal, get_args

import jax

Implementation = Literal["xla", "triton"]
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)


def default_implementation(devices: int = 1) -> Implementation:
    """The fastest one that was measured: Pallas-Triton kernels on one GPU, else XLA, which also partitions.

    An op whose kernel does not take a shape or dtype runs through XLA all the same.
    """
    return "triton" if devices == 1 and jax.default_backend() == "gpu" else "xla"
