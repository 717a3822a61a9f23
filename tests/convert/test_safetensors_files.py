"""Folders whose weight files are damaged, incomplete or of the wrong kind."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_models import assert_same, expected_params, load_params, read_settings, read_tensors

from convert.checkpoint import open_checkpoint
from convert.safetensors_files import INDEX
from specdiff_jax.config import INT8_ROWS
from specdiff_jax.errors import InputError


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def edit_index(folder: Path, **changes: object) -> None:
    index = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps({**index, **changes}))


def refused(folder: Path) -> str:
    """The one line with which the folder is refused."""
    with pytest.raises(InputError) as error:
        open_checkpoint(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_shards_are_read_like_one_file(llama_folder: Path) -> None:
    params = load_params(open_checkpoint(llama_folder))
    assert_same(params, expected_params(read_tensors(llama_folder), read_settings(llama_folder)))


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_a_truncated_file(kept: int, llama_folder: Path) -> None:
    shard = shards(llama_folder)[1]
    shard.write_bytes(shard.read_bytes()[:kept])
    assert f"{shard}: truncated" in refused(llama_folder)


def test_a_missing_shard(llama_folder: Path) -> None:
    shard = shards(llama_folder)[2]
    shard.unlink()
    message = refused(llama_folder)
    assert shard.name in message
    assert "missing" in message


def test_index_and_shards_disagree_both_ways(llama_folder: Path) -> None:
    shard = shards(llama_folder)[0]
    tensors = load_file(shard)
    lost = next(iter(tensors))
    tensors["new.weight"] = tensors.pop(lost)
    save_file(tensors, shard)
    message = refused(llama_folder)
    assert f"{lost} is in the index but not in {shard.name}" in message
    assert f"new.weight is in {shard.name} but not in the index" in message


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 3}, {"a": "../other/model.safetensors"}])
def test_a_broken_index(weight_map: object, llama_folder: Path) -> None:
    edit_index(llama_folder, weight_map=weight_map)
    assert INDEX in refused(llama_folder)


@pytest.mark.parametrize("text", ["", "[1]", "{", "\xff"])
def test_an_index_or_config_that_is_no_object(text: str, llama_folder: Path) -> None:
    for name in (INDEX, "config.json"):
        before = (llama_folder / name).read_bytes()
        (llama_folder / name).write_bytes(text.encode("latin-1"))
        assert f"{llama_folder / name}: " in refused(llama_folder)
        (llama_folder / name).write_bytes(before)


def test_a_quantised_checkpoint(llama_folder: Path) -> None:
    shard = shards(llama_folder)[0]
    tensors = load_file(shard)
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name].astype(np.int8)}, shard)
    assert f"{name} (I8)" in refused(llama_folder)


GATE = "model.layers.0.mlp.gate_proj.weight"
STEPS = np.arange(-1000, 920).reshape(40, 48).astype(np.int8)
SCALES = np.linspace(0, 0.01, 40, dtype=np.float32)


def with_int8_gate(folder: Path, scales: np.ndarray | None, mark: object = INT8_ROWS) -> Path:
    """The folder with one matrix as int8 rows, the scales in another shard than the matrix."""
    first, second = (next(path for path in shards(folder) if (GATE in load_file(path)) is has) for has in (True, False))
    save_file({**load_file(first), GATE: STEPS}, first)
    if scales is not None:
        save_file({**load_file(second), f"{GATE}_scale": scales}, second)
        weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
        edit_index(folder, weight_map={**weight_map, f"{GATE}_scale": second.name})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": mark}))
    return folder


def test_int8_rows_are_read_as_float32(llama_folder: Path) -> None:
    checkpoint = open_checkpoint(with_int8_gate(llama_folder, SCALES))
    assert checkpoint.tensors is not None
    assert f"{GATE}_scale" not in checkpoint.tensors.tensors
    gate = checkpoint.tensors.read(GATE)
    assert gate.dtype == np.float32
    np.testing.assert_array_equal(
        gate, np.float32([[step * scale for step in row] for row, scale in zip(STEPS, SCALES, strict=True)])
    )
    assert "quantization_config" not in checkpoint.config
    np.testing.assert_array_equal(load_params(checkpoint)["layers.0.feed_forward.gate_up"][::2], gate)


@pytest.mark.parametrize(
    ("scales", "why"),
    [
        (None, f"{GATE} is int8 and {GATE}_scale is missing"),
        (SCALES[:-1], f"{GATE}_scale is F32 (39,) instead of F32 (40,)"),
        (SCALES[:, None], f"{GATE}_scale is F32 (40, 1) instead of F32 (40,)"),
        (SCALES.astype(np.float16), f"{GATE}_scale is F16 (40,) instead of F32 (40,)"),
        (np.where(SCALES > 0, SCALES, np.nan), f"{GATE}_scale has NaN, infinite or negative scales"),
        (np.where(SCALES > 0, SCALES, np.inf), f"{GATE}_scale has NaN, infinite or negative scales"),
        (SCALES - np.float32(0.001), f"{GATE}_scale has NaN, infinite or negative scales"),
    ],
    ids=["missing", "short", "two axes", "float16", "NaN", "infinite", "negative"],
)
def test_int8_rows_without_good_scales(scales: np.ndarray | None, why: str, llama_folder: Path) -> None:
    assert refused(with_int8_gate(llama_folder, scales)).endswith(f"get the folder anew: {why}")


def test_every_int8_fault_is_named(llama_folder: Path) -> None:
    up = GATE.replace("gate", "up")
    shard = next(path for path in shards(llama_folder) if up in load_file(path))
    save_file({**load_file(shard), up: STEPS}, shard)
    message = refused(with_int8_gate(llama_folder, SCALES[:2]))
    assert f"{GATE}_scale is F32 (2,)" in message
    assert f"{up} is int8 and" in message


@pytest.mark.parametrize("mark", [None, {"quant_method": "bitsandbytes"}, {**INT8_ROWS, "bits": 4}, "int8_rows"])
def test_int8_rows_that_the_config_does_not_announce(mark: object, llama_folder: Path) -> None:
    message = refused(with_int8_gate(llama_folder, SCALES, mark))
    assert f"{GATE} (I8)" in message
    assert "isn't quantised" in message


def test_scales_of_a_float_matrix_are_unexpected(llama_folder: Path) -> None:
    folder = with_int8_gate(llama_folder, SCALES)
    shard = next(path for path in shards(folder) if GATE in load_file(path))
    save_file({**load_file(shard), GATE: STEPS.astype(np.float32)}, shard)
    with pytest.raises(InputError, match=f"{GATE}_scale is unexpected"):
        load_params(open_checkpoint(folder))


def test_no_config(llama_folder: Path) -> None:
    (llama_folder / "config.json").unlink()
    assert "config.json" in refused(llama_folder)


def test_no_weights(llama_folder: Path) -> None:
    for path in (*shards(llama_folder), llama_folder / INDEX):
        path.unlink()
    assert "neither model.safetensors nor model.safetensors.index.json" in refused(llama_folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickles_are_refused_unopened(name: str, llama_folder: Path) -> None:
    for path in (*shards(llama_folder), llama_folder / INDEX):
        path.unlink()
    pickle = llama_folder / name
    pickle.write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    for given in (llama_folder, pickle):
        message = refused(given)
        assert name in message
        assert "pickle" in message
        assert "convert" in message


def test_a_lone_safetensors_file(llama_folder: Path) -> None:
    assert "give the folder" in refused(shards(llama_folder)[0])


def test_texts_and_dtype(llama_folder: Path) -> None:
    (llama_folder / "tokenizer.json").write_text('{"é": 1}', encoding="utf-8")
    (llama_folder / "README.md").write_text("not a tokenizer file")
    checkpoint = open_checkpoint(llama_folder)
    assert checkpoint.text_files == {"tokenizer.json": '{"é": 1}'}
    assert checkpoint.generation_config["eos_token_id"] == 2
    assert checkpoint.dtype == "float32"


def test_a_rotary_buffer_does_not_widen_the_dtype(llama_folder: Path) -> None:
    for shard in shards(llama_folder):
        shard.unlink()
    (llama_folder / INDEX).unlink()
    tensors = {
        "model.norm.weight": np.zeros(3, ml_dtypes.bfloat16),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(3, np.float32),
    }
    save_file(tensors, llama_folder / "model.safetensors")
    assert open_checkpoint(llama_folder).dtype == "bfloat16"
