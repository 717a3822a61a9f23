"""How much host memory loading takes beyond the weights themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from workers import run_worker

GIB = 2**30


def measure(folder: Path, layers: int, vocabulary: int, hidden: int) -> dict[str, int]:
    """Load a synthetic checkpoint in another process and return its figures, in bytes."""
    return run_worker(Path(__file__).with_name("memory_worker.py"), folder, layers, vocabulary, hidden)


def test_a_small_checkpoint(tmp_path: Path) -> None:
    figures = measure(tmp_path, layers=8, vocabulary=16384, hidden=1024)
    assert figures["weights"] > 256e6
    assert figures["beyond_weights"] <= figures["largest_tensor"] + 0.125 * GIB


@pytest.mark.slow
def test_eight_gigabytes(tmp_path: Path) -> None:
    figures = measure(tmp_path, layers=14, vocabulary=128256, hidden=4096)
    assert figures["weights"] > 8e9
    assert figures["beyond_weights"] <= figures["largest_tensor"] + GIB
