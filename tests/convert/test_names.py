"""The name table: real tensor names, and parts that fill their parameter exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import jax
import numpy as np
import pytest
from tiny_models import abstract_state, assert_filled_once

from convert.names import FAMILY_NAMES, Part, parameter_parts
from specdiff_jax.config import Family, ModelConfig, MoEConfig, parse_config
from specdiff_jax.rotary_config import RotaryConfig

BASE = ModelConfig(
    family="llama",
    vocab_size=11,
    hidden_size=8,
    intermediate_size=6,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=4,
    rms_norm_eps=1e-6,
    rotary=RotaryConfig("default", 10000.0, (1.0, 0.01)),
    max_position_embeddings=32,
)
CONFIGS = {
    "plain": BASE,
    "tied, every bias": replace(BASE, tie_embeddings=True, qkv_bias=True, output_bias=True, mlp_bias=True),
    "norms, experts": replace(BASE, family="qwen3_moe", qk_norm=True, moe=MoEConfig(4, 2, 3, True, (1,))),
    "nemotron": replace(BASE, family="nemotron_labs_diffusion"),
}
FUSED = ("model.layers.1.mlp.experts.gate_up_proj",)


def test_every_family_has_names() -> None:
    assert set(FAMILY_NAMES) == set(get_args(Family))


def test_fast_dllm_v2_index(shared: Path) -> None:
    folder = shared / "fixtures" / "fast_dllm_v2_7b"
    names = set(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"])
    config = parse_config(json.loads((folder / "config.json").read_text()), "config.json")
    table = parameter_parts(config, names)
    ours = [part.name for parts in table.values() for part in parts]
    assert len(ours) == len(names) == 339
    assert set(ours) == names


@pytest.mark.parametrize("present", [(), FUSED], ids=["single experts", "fused experts"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_parts_fill_every_parameter_of_the_decoder_once(config: ModelConfig, present: tuple[str, ...]) -> None:
    table = parameter_parts(config, present)
    leaves, _ = jax.tree.flatten_with_path(abstract_state(config))
    shapes = {".".join(str(key.key) for key in path[:-1]): leaf.shape for path, leaf in leaves}
    assert table.keys() == shapes.keys()
    assert_filled_once(table, shapes)


@pytest.mark.parametrize("present", [(), FUSED], ids=["single experts", "fused experts"])
def test_unpack_inverts_pack(present: tuple[str, ...]) -> None:
    random = np.random.default_rng(0)
    parts = [part for parts in parameter_parts(CONFIGS["norms, experts"], present).values() for part in parts]
    for part in parts:
        parameter = np.zeros(part.view).reshape(parameter_shape(part))
        tensor = random.normal(size=part.shape)
        part.pack(tensor, parameter)
        np.testing.assert_array_equal(part.unpack(parameter), tensor, err_msg=part.name)


def parameter_shape(part: Part) -> tuple[int, ...]:
    """Any shape with the elements of the part's view."""
    return (int(np.prod(part.view)),)
