"""Decoding on several devices gives one device's tokens, dense and mixture of experts."""

from __future__ import annotations

from pathlib import Path

from workers import run_worker


def test_meshes_give_one_devices_tokens():
    cases = run_worker(Path(__file__).with_name("sharded_worker.py"), devices=4)
    assert [len(runs) - 1 for runs in cases] == [3, 1, 1, 3, 1, 1]
    for runs in cases:
        alone = runs.pop("None")
        assert len({tuple(tokens) for tokens in alone}) > 1
        for mesh, tokens in runs.items():
            assert tokens == alone, mesh
