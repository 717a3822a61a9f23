"""Result files."""

from __future__ import annotations

import json

import pytest

from bench.environment import Environment, read_environment
from bench.results import add_rows, read_results
from specdiff_jax.errors import InputError

OLD = Environment("specdiff bench decode", "h200", "580.1", "0.11.2", "2026-01-01", "aaa")
NEW = Environment("specdiff bench decode --batch 1", "h200", "580.1", "0.11.2", "2026-01-02", "bbb")


def row(batch: int, implementation: str | None = "xla", **rest: object) -> dict[str, object]:
    settings = {"batch": batch, "implementation": implementation}
    return {"model": "m", "task": "step", "method": "autoregressive", "settings": settings, **rest}


def values(file) -> list[object]:
    return [entry.get("tokens_per_second", entry.get("error")) for entry in read_results(file)["rows"]]


def test_the_head_tells_of_the_newest_rows_and_each_row_of_itself(tmp_path):
    add_rows(tmp_path, "decode", OLD, [row(1, tokens_per_second=10)])
    file = add_rows(tmp_path, "decode", NEW, [row(32, tokens_per_second=20)])
    assert file == tmp_path / "h200" / "decode.json"
    content = json.loads(file.read_text())
    assert list(content) == ["command", "gpu", "driver", "jax", "date", "commit", "rows"]
    assert content["commit"] == "bbb"
    assert [entry["measured"]["commit"] for entry in content["rows"]] == ["aaa", "bbb"]
    assert [path.name for path in file.parent.iterdir()] == ["decode.json"]


def test_a_row_replaces_the_one_that_asked_for_the_same(tmp_path):
    add_rows(tmp_path, "decode", OLD, [row(1, tokens_per_second=10), row(32, tokens_per_second=20)])
    file = add_rows(tmp_path, "decode", NEW, [row(1, "triton", tokens_per_second=11)])
    assert values(file) == [11, 20]


def test_an_error_gives_way_to_a_number_but_not_the_other_way_round(tmp_path):
    add_rows(tmp_path, "decode", OLD, [row(1, None, error="no memory"), row(32, tokens_per_second=20)])
    file = add_rows(tmp_path, "decode", NEW, [row(1, tokens_per_second=10), row(32, None, error="no time")])
    assert values(file) == [10, 20]


@pytest.mark.parametrize("content", ["", "[]", '{"rows": 1}'])
def test_a_damaged_file_is_named_and_left_alone(tmp_path, content):
    file = tmp_path / "h200" / "decode.json"
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(InputError, match=r"decode\.json"):
        add_rows(tmp_path, "decode", NEW, [row(1)])
    assert file.read_text() == content


def test_the_environment_without_a_gpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    environment = read_environment(["bench", "decode"], "abc")
    assert (environment.gpu, environment.driver) == ("cpu", None)
    assert (environment.command, environment.commit) == ("specdiff bench decode", "abc")


def test_the_environment_with_a_gpu(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.159.04'\necho 'NVIDIA H200, 580.159.04'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    environment = read_environment([], None)
    assert (environment.gpu, environment.driver) == ("h200", "580.159.04")
    assert environment.commit == "unknown"  # there is no git on this path
