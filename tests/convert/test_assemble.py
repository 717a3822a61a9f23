"""Parameters of small random checkpoints, value by value, and every way in which weights can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_models import (
    FAMILIES,
    abstract_state,
    assert_same,
    expected_params,
    load_params,
    read_settings,
    read_tensors,
    save_family,
)

from convert.assemble import NonFiniteWeightsWarning, load_parameters
from convert.checkpoint import open_checkpoint
from specdiff_jax.errors import InputError


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_the_checkpoint_tensors(family: str, family_folder: Callable[[str], Path]) -> None:
    folder = family_folder(family)
    assert_same(load_params(open_checkpoint(folder)), expected_params(read_tensors(folder), read_settings(folder)))


def test_grouped_queries_and_tied_head_are_covered(family_folder: Callable[[str], Path]) -> None:
    config = read_settings(family_folder("Llama"))
    assert config.group_size == 3
    assert config.tie_embeddings
    assert "lm_head.weight" not in read_tensors(family_folder("Llama"))


def test_fused_experts(family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    save_family("Qwen3Moe", tmp_path, save_original_format=False)
    assert read_tensors(tmp_path)["model.layers.0.mlp.experts.gate_up_proj"].shape == (4, 24, 48)
    one_by_one = load_params(open_checkpoint(family_folder("Qwen3Moe")))
    assert_same(load_params(open_checkpoint(tmp_path)), one_by_one)


def test_nemotron_names(family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    source = family_folder("Llama with biases")
    tensors = {
        name.replace("model.", "encoder.").replace("lm_head", "diffusion_head"): tensor
        for name, tensor in read_tensors(source).items()
        if not name.endswith("bias")
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    config = replace(
        read_settings(source), family="nemotron_labs_diffusion", qkv_bias=False, output_bias=False, mlp_bias=False
    )
    source_tensors = open_checkpoint(tmp_path).tensors
    params = load_parameters(source_tensors, config, abstract_state(config))
    np.testing.assert_array_equal(params["head"][...], tensors["diffusion_head.weight"])
    expected = expected_params(tensors, config, "encoder", "diffusion_head.weight")
    np.testing.assert_array_equal(params["layers"][1]["attention"]["qkv"][...], expected["layers.1.attention.qkv"])


def test_bfloat16_checkpoint_reaches_float32_unchanged_and_bfloat16_bit_equal(tmp_path: Path) -> None:
    import torch

    save_family("Qwen3", tmp_path, dtype=torch.bfloat16)
    expected = expected_params(read_tensors(tmp_path), read_settings(tmp_path))
    assert all(array.dtype == ml_dtypes.bfloat16 for array in expected.values())
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.dtype == "bfloat16"
    assert_same(load_params(checkpoint, "bfloat16"), expected)
    assert_same(load_params(checkpoint), {path: array.astype(np.float32) for path, array in expected.items()})


@pytest.mark.parametrize("stored", [np.float32, np.float16, np.float64])
def test_other_dtypes_are_rounded_once(stored: type, tmp_path: Path, family_folder: Callable[[str], Path]) -> None:
    source = family_folder("Llama")
    tensors = {name: tensor.astype(stored) for name, tensor in read_tensors(source).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.dtype == "float32"
    expected = expected_params(tensors, read_settings(tmp_path))
    for dtype in (ml_dtypes.bfloat16, np.float32):
        once = {path: array.astype(dtype) for path, array in expected.items()}
        assert_same(load_params(checkpoint, np.dtype(dtype).name), once)


def edit(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Rewrite a one-file checkpoint after a change of its tensors."""
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.fixture
def damaged(tmp_path: Path) -> Callable[[Callable[[dict[str, np.ndarray]], object]], Path]:
    """A folder with a tied Llama whose tensors were changed."""

    def make(change: Callable[[dict[str, np.ndarray]], object]) -> Path:
        save_family("Llama", tmp_path)
        edit(tmp_path, change)
        return tmp_path

    return make


def test_every_fault_is_in_one_error(damaged: Callable[..., Path]) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        del tensors["model.norm.weight"]
        tensors["model.layers.0.self_attn.k_proj.weight"] = np.zeros((8, 48), np.float32)
        tensors["model.layers.1.mlp.down_proj.weight"] = np.zeros((40, 48), np.float32)
        tensors["model.layers.0.self_attn.sinks"] = np.zeros(6, np.float32)

    with pytest.raises(InputError) as error:
        load_params(open_checkpoint(damaged(change)))
    message = str(error.value)
    assert "\n" not in message
    for fault in (
        "model.norm.weight is missing",
        "model.layers.0.self_attn.k_proj.weight has shape (8, 48) instead of (16, 48)",
        "model.layers.1.mlp.down_proj.weight has shape (40, 48) instead of (48, 40)",
        "model.layers.0.self_attn.sinks is unexpected",
    ):
        assert fault in message


def test_a_long_list_of_faults_is_cut(damaged: Callable[..., Path]) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors |= {f"extra.{index}": np.zeros(1, np.float32) for index in range(23)}

    with pytest.raises(InputError, match=r"\.\.\. and 3 more$"):
        load_params(open_checkpoint(damaged(change)))


def test_faults_are_found_before_anything_is_read(
    damaged: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(damaged(lambda tensors: tensors.pop("model.norm.weight")))
    monkeypatch.setattr(type(checkpoint.tensors), "read", lambda *_: pytest.fail("read"))
    with pytest.raises(InputError, match=r"model\.norm\.weight is missing"):
        load_params(checkpoint)


def test_an_untied_checkpoint_needs_its_head(damaged: Callable[..., Path]) -> None:
    folder = damaged(lambda tensors: None)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(InputError, match=r"lm_head\.weight is missing"):
        load_params(open_checkpoint(folder))


def test_knowingly_ignored_tensors(damaged: Callable[..., Path], family_folder: Callable[[str], Path]) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
        tensors["base_model.model.encoder.layers.0.self_attn.o_proj.lora_A.weight"] = np.zeros((2, 48), np.float32)

    assert_same(load_params(open_checkpoint(damaged(change))), load_params(open_checkpoint(family_folder("Llama"))))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nonfinite_weights_are_named_and_loaded(value: float, damaged: Callable[..., Path]) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.1.self_attn.v_proj.weight"][3, 5] = value
        tensors["model.norm.weight"][0] = value

    checkpoint = open_checkpoint(damaged(change))
    with pytest.warns(NonFiniteWeightsWarning) as caught:
        params = load_params(checkpoint)
    (warning,) = caught
    text = str(warning.message)
    assert "model.layers.1.self_attn.v_proj.weight" in text
    assert "model.norm.weight" in text
    assert text.count("weight;") + 1 == 2
    np.testing.assert_array_equal(params["norm.weight"][0], np.float32(value))


def test_weights_beyond_the_dtype_are_named(damaged: Callable[..., Path]) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = np.finfo(np.float32).max

    checkpoint = open_checkpoint(damaged(change))
    with pytest.warns(NonFiniteWeightsWarning, match=r"in model\.layers\.0\.mlp\.up_proj\.weight$"):
        load_params(checkpoint, "bfloat16")
    load_params(checkpoint)
