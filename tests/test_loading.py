"""From a name to a model: every kind of checkpoint gives the same weights, settings and texts."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file
from same_model import assert_same_model, leaves
from workers import run_worker

from specdiff_jax import loading
from specdiff_jax.config import read_config
from specdiff_jax.conversion import convert_checkpoint
from specdiff_jax.errors import InputError
from specdiff_jax.loading import load, random_model


def test_load(tiny_checkpoint: Path) -> None:
    model = load(tiny_checkpoint)
    assert (model.name, model.stop_ids, model.mesh) == (str(tiny_checkpoint), (2,), None)
    assert model.dtype == jnp.float32
    assert model.tokenizer.decode(model.tokenizer.encode("the quick fox")) == "the quick fox"
    tensors = load_file(tiny_checkpoint / "model.safetensors")
    module = nnx.merge(model.graphdef, model.params)
    np.testing.assert_array_equal(module.embedding[...], tensors["model.embed_tokens.weight"])
    np.testing.assert_array_equal(
        module.layers[1].attention.out[...], tensors["model.layers.1.self_attn.o_proj.weight"]
    )
    assert module(jnp.array([[5, 6, 7]])).hidden.shape == (1, 3, 32)


def test_dtypes(tiny_checkpoint: Path) -> None:
    single, half = load(tiny_checkpoint, dtype="float32"), load(tiny_checkpoint, dtype="bfloat16")
    assert (single.dtype, half.dtype) == (jnp.float32, jnp.bfloat16)
    for ours, theirs in zip(leaves(half), leaves(single), strict=True):
        np.testing.assert_array_equal(ours, theirs.astype(jnp.bfloat16))
    with pytest.raises(InputError, match="float16"):
        load(tiny_checkpoint, dtype="float16")


def test_a_converted_folder_loads_the_same(tiny_checkpoint: Path, tmp_path: Path) -> None:
    destination = tmp_path / "converted"
    convert_checkpoint(tiny_checkpoint, destination)
    for dtype in ("float32", "bfloat16"):
        found, expected = load(destination, dtype=dtype), load(tiny_checkpoint, dtype=dtype)
        assert_same_model(found, expected)
        messages = [{"role": "user", "content": "fox 12"}]
        assert found.tokenizer.encode_chat(messages) == expected.tokenizer.encode_chat(messages)


def test_a_checkpoint_without_texts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny_checkpoint / name).read_bytes())
    model = load(tmp_path)
    assert model.tokenizer is None
    assert model.stop_ids == (2,)


def test_random_model(tiny_checkpoint: Path) -> None:
    config = read_config(tiny_checkpoint)
    model = random_model(config, dtype="bfloat16", seed=1)
    assert model.tokenizer is None
    assert model.dtype == jnp.bfloat16
    assert model.graphdef == load(tiny_checkpoint, dtype="bfloat16").graphdef
    module = nnx.merge(model.graphdef, model.params)
    assert 0.01 < float(jnp.std(module.embedding[...].astype(jnp.float32))) < 0.03
    np.testing.assert_array_equal(module.norm.weight[...], np.ones(32))
    again, other = (random_model(config, dtype="bfloat16", seed=seed) for seed in (1, 2))
    assert_same_model(again, model)
    assert not np.array_equal(leaves(other)[0], leaves(model)[0])


def test_mesh_and_tensor_parallel_exclude_each_other(tiny_checkpoint: Path) -> None:
    mesh = jax.make_mesh((1, 1), ("data", "tensor"))
    with pytest.raises(InputError, match="not both"):
        load(tiny_checkpoint, mesh=mesh, tensor_parallel=2)


def test_implementations(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels where they are asked for and run, and one line where they don't."""
    with pytest.raises(InputError, match=r"implementation 'cuda' is none of xla, triton"):
        loading._check_runs("cuda", 1)
    with pytest.raises(InputError, match=r"runs on one GPU alone"):
        load(tiny_checkpoint, implementation="triton")
    monkeypatch.setattr(loading, "default_implementation", lambda devices: "triton" if devices == 1 else "xla")
    monkeypatch.setattr("pallas_kernels.triton.attention.supports", lambda *_: True)
    found = {
        name: nnx.merge(model.graphdef, model.params).layers[0].attention.branch_kernels
        for name in ("xla", "triton", None)
        for model in [load(tiny_checkpoint, implementation=name)]
    }
    assert found == {"xla": False, "triton": True, None: True}


def test_over_several_devices(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Both ways of loading, and random weights, are split as asked and equal those of one device."""
    convert_checkpoint(tiny_checkpoint, tmp_path / "converted")
    worker = Path(__file__).with_name("loading_worker.py")
    assert run_worker(worker, tiny_checkpoint, tmp_path / "converted", devices=2) == {"compared": 3}
