"""Sharding: rules and refusals here, numbers on 8 simulated devices in `parallel_worker.py`."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from specdiff_jax.config import ModelConfig, MoEConfig
from specdiff_jax.errors import InputError
from specdiff_jax.geometries import geometry
from specdiff_jax.parallel import check_parallel, make_mesh, param_sharding

ROOT = Path(__file__).parents[1]


def mesh(data: int, tensor: int) -> AbstractMesh:
    return AbstractMesh((data, tensor), ("data", "tensor"))


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    worker = subprocess.run(
        [sys.executable, ROOT / "tests" / "parallel_worker.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert worker.returncode == 0, worker.stderr
    return json.loads(worker.stdout)


def test_split_models_compute_what_one_device_does(runs: list[dict[str, Any]]) -> None:
    assert [(run["model"], run["mesh"]) for run in runs] == [
        (model, mesh) for model in ("llama", "qwen3_moe") for mesh in ([1, 2], [1, 4], [2, 2])
    ]
    for run in runs:
        assert run["logit_size"] > 1
        assert run["logit_diff"] < 1e-5, (run["model"], run["mesh"])
        assert run["tokens"] == run["tokens_alone"], (run["model"], run["mesh"])


def test_split_models_are_really_split(runs: list[dict[str, Any]]) -> None:
    for run in runs:
        (data, tensor), parts = run["mesh"], run["parts"]
        assert parts["layers.0.attention.qkv"] == [tensor, 1]
        assert parts["layers.0.attention.out"] == [1, tensor]
        assert parts["norm.weight"] == parts["layers.1.attention_norm.weight"] == [1]
        assert run["cache_part"][:2] == [2 // data, 4 // tensor]
        if run["model"] == "llama":
            assert parts["embedding"] == parts["head"] == [1, 1], "97 entries can't be split"
            assert parts["layers.0.attention.qkv_bias"] == parts["layers.0.feed_forward.gate_up_bias"] == [tensor]
            assert parts["layers.0.attention.out_bias"] == parts["layers.0.feed_forward.down_bias"] == [1]
            assert parts["layers.1.feed_forward.gate_up"] == [tensor, 1]
            assert parts["layers.1.feed_forward.down"] == [1, tensor]
        else:
            assert parts["embedding"] == parts["head"] == [tensor, 1]
            assert parts["layers.0.feed_forward.gate_up"] == [1, 1, tensor]
            assert parts["layers.0.feed_forward.down"] == [1, tensor, 1]
            assert parts["layers.0.feed_forward.router"] == [1, 1]
            assert parts["layers.1.feed_forward.gate_up"] == [tensor, 1], "a dense layer of a sparse model"


@pytest.mark.parametrize(
    ("path", "shape", "spec"),
    [
        ("embedding", (96, 32), P("tensor", None)),
        ("embedding", (97, 32), P()),
        ("layers.3.attention.qkv", (64, 32), P("tensor", None)),
        ("layers.3.feed_forward.down", (32, 64), P(None, "tensor")),
        ("layers.3.feed_forward.down", (6, 24, 32), P(None, "tensor", None)),
        ("layers.3.feed_forward.router", (8, 32), P()),
        ("layers.3.attention.qk_norm.query", (16,), P()),
        ("layers.3.attention.out_bias", (32,), P()),
    ],
)
def test_rules(path: str, shape: tuple[int, ...], spec: P) -> None:
    assert param_sharding(path, shape, mesh(2, 4)).spec == spec


def sparse(config: ModelConfig, sparse_layers: tuple[int, ...]) -> ModelConfig:
    return dataclasses.replace(config, moe=MoEConfig(128, 8, 768, True, sparse_layers))


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_what_can_be_split(tensor: int) -> None:
    qwen = geometry("qwen3-8b")
    check_parallel(qwen, mesh(1, tensor))
    check_parallel(sparse(qwen, (0, 1)), mesh(3, tensor))
    odd_but_unused = dataclasses.replace(qwen, intermediate_size=12289)
    check_parallel(sparse(odd_but_unused, tuple(range(qwen.num_layers))), mesh(1, tensor))


@pytest.mark.parametrize(
    ("config", "tensor", "expected"),
    [
        (
            geometry("qwen3-8b"),
            3,
            "over 3 devices, which don't divide its 8 key/value heads; numbers that work: 1, 2, 4, 8",
        ),
        (geometry("qwen3-8b"), 16, "don't divide its 8 key/value heads; numbers that work: 1, 2, 4, 8"),
        (geometry("smollm2-135m"), 2, "don't divide its 3 key/value heads; numbers that work: 1, 3"),
        (
            dataclasses.replace(geometry("qwen3-8b"), intermediate_size=12290),
            4,
            "don't divide its 12290 columns of the feed-forward; numbers that work: 1, 2",
        ),
        (
            sparse(dataclasses.replace(geometry("qwen3-8b"), num_kv_heads=5), (0,)),
            5,
            "its 12288 columns of the feed-forward and 768 columns of each expert; numbers that work: 1",
        ),
    ],
)
def test_what_cannot_be_split_is_refused(config: ModelConfig, tensor: int, expected: str) -> None:
    with pytest.raises(InputError) as error:
        check_parallel(config, mesh(1, tensor))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_mesh() -> None:
    one = make_mesh(1, 1, jax.devices()[:1])
    assert one.axis_names == ("data", "tensor")
    assert dict(one.shape) == {"data": 1, "tensor": 1}
    with pytest.raises(InputError, match="data=2 times tensor=4 takes 8 devices, but there are 1"):
        make_mesh(2, 4, jax.devices()[:1])
    with pytest.raises(InputError, match="a mesh needs positive sizes, not data=1 and tensor=0"):
        make_mesh(1, 0)
