"""The names of a drafter's tensors, their packing, and every way in which its weights can be wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from drafter_files import EVERYTHING, SETTINGS, published_tensors, save_published
from safetensors.numpy import save_file
from tiny_models import alternate, assert_filled_once, assert_same, by_kv_head, by_path

from convert.assemble import NonFiniteWeightsWarning
from convert.checkpoint import open_checkpoint
from convert.drafter_names import drafter_parts, load_drafter_parameters
from convert.params import named
from specdiff_jax.drafter_config import DrafterConfig
from specdiff_jax.drafter_config_file import parse_drafter_config
from specdiff_jax.drafter_loading import abstract_drafter
from specdiff_jax.errors import InputError
from specdiff_jax.geometries import drafter_geometry


def load_folder(folder: Path, dtype: str = "float32") -> dict[str, np.ndarray]:
    checkpoint = open_checkpoint(folder)
    config = parse_drafter_config(checkpoint.config, checkpoint.config_location)
    assert checkpoint.tensors is not None
    return by_path(load_drafter_parameters(checkpoint.tensors, config, abstract_drafter(config, dtype)[1]))


def expected_params(tensors: Mapping[str, np.ndarray], config: DrafterConfig) -> dict[str, np.ndarray]:
    """The drafter's parameters, worked out tensor by tensor."""
    backbone = config.backbone
    params = {"norm.weight": tensors["norm.weight"]}
    if config.conditioning != "none":
        params |= {"fuse": tensors["fc.weight"], "context_norm.weight": tensors["hidden_norm.weight"]}
    for index in range(backbone.num_layers):
        layer, attention, mlp = (f"layers.{index}{part}" for part in ("", ".self_attn", ".mlp"))
        projections = [tensors[f"{attention}.{name}_proj.weight"] for name in "qkv"]
        params |= {
            f"{layer}.attention_norm.weight": tensors[f"{layer}.input_layernorm.weight"],
            f"{layer}.feed_forward_norm.weight": tensors[f"{layer}.post_attention_layernorm.weight"],
            f"{layer}.attention.qkv": by_kv_head(*projections, backbone),
            f"{layer}.attention.out": tensors[f"{attention}.o_proj.weight"],
            f"{layer}.attention.qk_norm.query": tensors[f"{attention}.q_norm.weight"],
            f"{layer}.attention.qk_norm.key": tensors[f"{attention}.k_norm.weight"],
            f"{layer}.feed_forward.gate_up": alternate(*(tensors[f"{mlp}.{x}_proj.weight"] for x in ("gate", "up"))),
            f"{layer}.feed_forward.down": tensors[f"{mlp}.down_proj.weight"],
        }
        if backbone.qkv_bias:
            biases = [tensors[f"{attention}.{name}_proj.bias"] for name in "qkv"]
            params[f"{layer}.attention.qkv_bias"] = by_kv_head(*biases, backbone)
            params[f"{layer}.attention.out_bias"] = tensors[f"{attention}.o_proj.bias"]
        if config.attention_sinks:
            params[f"{layer}.sinks"] = np.array(np.split(tensors[f"{attention}.attention_sink_bias"], 2))
    return params


def test_published_names_and_shapes(shared: Path) -> None:
    file = shared / "fixtures" / "dflash" / "Qwen3-8B-DFlash-b16.tensors.json"
    published = {name: tuple(shape) for name, shape in json.loads(file.read_text())["tensors"].items()}
    parts = [part for parts in drafter_parts(drafter_geometry("qwen3-8b-b16")).values() for part in parts]
    assert len(parts) == len(published) == 58
    assert {part.name: part.shape for part in parts} == published
    assert sum(int(np.prod(shape)) for shape in published.values()) == 1_048_626_432


def without_features(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "dflash_config": {**settings["dflash_config"], "conditioning": "none"}}


CASES = {"plain": SETTINGS, "biases, sinks": EVERYTHING, "no features": without_features(SETTINGS)}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_parts_fill_every_parameter_of_the_drafter_once(settings: dict[str, Any]) -> None:
    config = parse_drafter_config(settings, "config.json")
    table = drafter_parts(config)
    shapes = {path: leaf.shape for path, leaf in named(abstract_drafter(config, "float32")[1]).items()}
    assert table.keys() == shapes.keys()
    assert_filled_once(table, shapes)


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("settings", [SETTINGS, EVERYTHING], ids=["plain", "biases, sinks"])
def test_parameters_are_the_published_tensors(settings: dict[str, Any], prefix: str, tmp_path: Path) -> None:
    tensors = published_tensors(settings)
    prefixed = {prefix + name: tensor for name, tensor in tensors.items()}
    config = parse_drafter_config(settings, "config.json")
    found = load_folder(save_published(tmp_path / "drafter", settings, prefixed))
    assert_same(found, expected_params(tensors, config))


def test_tensors_that_torch_wrote(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    tensors = published_tensors()
    folder = save_published(tmp_path / "drafter")
    half = {name: torch.from_numpy(tensor).to(torch.bfloat16) for name, tensor in tensors.items()}
    save_torch(half, folder / "model.safetensors", metadata={"format": "pt"})
    config = parse_drafter_config(SETTINGS, "config.json")
    rounded = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in tensors.items()}
    assert_same(load_folder(folder, "bfloat16"), expected_params(rounded, config))
    single = {name: tensor.astype(np.float32) for name, tensor in rounded.items()}
    assert_same(load_folder(folder), expected_params(single, config))


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.self_attn.qkv_proj.weight",
        "layers.1.self_attn.g_proj.weight",
        "aux_hidden_norms.0.weight",
        "layers.0.attention_conv.base_kernel",
        "candidate_selector.predecessor_codebook",
        "layers.2.input_layernorm.weight",
        "layers.0.self_attn.attention_sink_bias",
        "layers.0.self_attn.q_proj.bias",
        "embed_tokens.weight",
    ],
)
def test_an_unexpected_tensor_is_named(name: str, tmp_path: Path) -> None:
    tensors = published_tensors() | {name: np.zeros(3, np.float32)}
    assert f"{name} is unexpected" in refused(save_published(tmp_path / "drafter", tensors=tensors))


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as error:
        load_folder(folder)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"{folder}: weights don't fit the drafter's config beside them: ")
    return str(error.value)


def test_what_is_missing_or_misshapen_is_named(tmp_path: Path) -> None:
    tensors = published_tensors()
    del tensors["layers.1.mlp.up_proj.weight"]
    # As wide as two layers, where the drafter has two layers and three features.
    tensors["fc.weight"] = np.zeros((24, 48), np.float32)
    line = refused(save_published(tmp_path / "drafter", tensors=tensors))
    assert "layers.1.mlp.up_proj.weight is missing" in line
    assert "fc.weight has shape (24, 48) instead of (24, 72)" in line


def test_a_prefix_on_some_names_is_refused(tmp_path: Path) -> None:
    tensors = published_tensors()
    tensors["model.norm.weight"] = tensors.pop("norm.weight")
    assert "model.fc.weight is missing" in refused(save_published(tmp_path / "drafter", tensors=tensors))


@pytest.mark.parametrize("place", ["", "layers.0.self_attn."])
def test_a_rotary_buffer_is_left_out(place: str, tmp_path: Path) -> None:
    tensors = published_tensors()
    folder = save_published(tmp_path / "drafter", tensors=tensors)
    expected = load_folder(folder)
    save_file(tensors | {f"{place}rotary_emb.inv_freq": np.ones(4, np.float32)}, folder / "model.safetensors")
    assert_same(load_folder(folder), expected)


def test_nan_weights_are_named(tmp_path: Path) -> None:
    tensors = published_tensors()
    tensors["layers.1.self_attn.k_proj.weight"][3, 4] = np.nan
    folder = save_published(tmp_path / "drafter", tensors=tensors)
    with pytest.warns(NonFiniteWeightsWarning, match=r"infinite weights in layers\.1\.self_attn\.k_proj\.weight$"):
        load_folder(folder)


def test_a_truncated_file(tmp_path: Path) -> None:
    folder = save_published(tmp_path / "drafter")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="truncated or no safetensors file"):
        load_folder(folder)
