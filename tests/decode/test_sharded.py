"""Decoding on several devices gives one device's tokens, dense and mixture of experts."""

from __future__ import annotations

from pathlib import Path

import pytest
from workers import run_worker


@pytest.mark.parametrize(
    ("which", "meshes"),
    [("few", [2, 1]), pytest.param("rest", [1, 1, 1, 2, 1, 1], marks=pytest.mark.slow)],
)
def test_meshes_give_one_devices_tokens(which: str, meshes: list[int]):
    cases = run_worker(Path(__file__).with_name("sharded_worker.py"), which, devices=4)
    assert [len(runs) - 1 for runs in cases] == meshes
    for runs in cases:
        alone = runs.pop("None")
        assert len({tuple(tokens) for tokens in alone}) > 1
        for mesh, tokens in runs.items():
            assert tokens == alone, mesh
