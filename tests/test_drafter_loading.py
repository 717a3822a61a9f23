"""Drafters: written and read again in every form, paired with their target, and told from models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from drafter_files import EVERYTHING, SETTINGS, TARGET, published_tensors, save_published
from safetensors.numpy import load_file
from tiny_models import assert_same, by_path
from workers import run_worker

import specdiff_jax as sd
from convert import resolve as resolve_module
from convert.hf_folder import Weights
from convert.int8_rows import dequantize, quantize
from specdiff_jax.drafter_config_file import config_json, parse_drafter_config
from specdiff_jax.drafter_loading import Drafter, abstract_drafter, load_drafter, random_drafter, save_drafter
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model, load, random_model


@pytest.fixture(scope="module")
def target() -> Model:
    return random_model(TARGET, dtype="float32")


def assert_same_drafter(found: Drafter, expected: Drafter) -> None:
    assert found.config == expected.config
    assert found.graphdef == expected.graphdef
    assert jax.tree.structure(found.params) == jax.tree.structure(expected.params)
    assert_same(by_path(found.params), by_path(expected.params))


@pytest.mark.parametrize("settings", [SETTINGS, EVERYTHING], ids=["plain", "biases, sinks"])
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_what_was_read_is_written(weights: Weights, settings: dict[str, Any], target: Model, tmp_path: Path) -> None:
    drafter = load_drafter(save_published(tmp_path / "published", settings), target)
    save_drafter(drafter.params, tmp_path / "written", config=drafter.config, weights=weights)
    tensors = published_tensors(settings)
    written = load_file(tmp_path / "written" / "model.safetensors")
    content = json.loads((tmp_path / "written" / "config.json").read_text())
    if weights == "int8":
        steps = {name: quantize(tensor) for name, tensor in tensors.items() if tensor.ndim > 1}
        scales = {f"{name}_scale": pair[1] for name, pair in steps.items()}
        assert_same(written, tensors | {name: pair[0] for name, pair in steps.items()} | scales)
        kept = tensors | {name: dequantize(*pair) for name, pair in steps.items()}
        assert content == config_json(drafter.config) | {"quantization_config": {"format": "int8_rows"}}
    else:
        kept = {name: tensor.astype(weights) for name, tensor in tensors.items()}
        assert_same(written, kept)
        assert content == config_json(drafter.config) | {"dtype": weights}
    again = load_drafter(tmp_path / "written", target)
    single = {name: tensor.astype(np.float32) for name, tensor in kept.items()}
    assert_same_drafter(again, load_drafter(save_published(tmp_path / "kept", settings, single), target))


def test_the_weights_take_the_dtype_of_the_target(tmp_path: Path, target: Model) -> None:
    folder = save_published(tmp_path / "drafter")
    half = load_drafter(folder, random_model(TARGET, dtype="bfloat16"))
    assert {leaf.dtype for leaf in jax.tree.leaves(half.params)} == {jnp.dtype("bfloat16")}
    expected = {
        path: leaf.astype(ml_dtypes.bfloat16) for path, leaf in by_path(load_drafter(folder, target).params).items()
    }
    assert_same(by_path(half.params), expected)


def test_random_drafter(target: Model, tmp_path: Path) -> None:
    config = parse_drafter_config(EVERYTHING, "config.json")
    drafter = random_drafter(config, target, seed=1)
    assert_same_drafter(random_drafter(config, target, seed=1), drafter)
    assert drafter.name == "random drafter"
    assert 0.01 < float(jnp.std(drafter.params["fuse"][...])) < 0.03
    other = random_drafter(config, target, seed=2)
    assert not np.array_equal(other.params["fuse"][...], drafter.params["fuse"][...])
    graphdef, abstract = abstract_drafter(config, "float32")
    assert graphdef == drafter.graphdef
    shapes, drawn = (jax.tree.map(jnp.shape, state) for state in (abstract, drafter.params))
    assert shapes == drawn
    save_drafter(drafter.params, tmp_path / "saved", config=config, weights="float32")
    assert_same_drafter(load_drafter(tmp_path / "saved", target), drafter)
    with pytest.raises(InputError, match="random drafter was made for another target: hidden_size 24"):
        random_drafter(config, random_model(replace(TARGET, hidden_size=32), dtype="float32"))


def test_no_other_dtype() -> None:
    with pytest.raises(InputError, match="'float16' is none of bfloat16, float32"):
        abstract_drafter(parse_drafter_config(SETTINGS, "config.json"), "float16")


def test_a_drafter_of_another_target(tmp_path: Path) -> None:
    folder = save_published(tmp_path / "drafter")
    other = random_model(replace(TARGET, vocab_size=64), dtype="float32")
    with pytest.raises(InputError) as error:
        load_drafter(folder, other)
    assert str(error.value) == (f"drafter {folder} was made for another target: vocab_size 50, but random qwen3 has 64")


def test_a_drafter_is_no_model(tmp_path: Path) -> None:
    folder = save_published(tmp_path / "drafter")
    with pytest.raises(InputError) as error:
        load(folder)
    expected = "is a drafter's config, no model's: load its target, and give this one as --drafter or drafter="
    assert str(error.value) == f"{folder / 'config.json'}: {expected}"


def test_a_model_is_no_drafter(tiny_checkpoint: Path, target: Model) -> None:
    with pytest.raises(InputError) as error:
        load_drafter(tiny_checkpoint, target)
    assert "\n" not in str(error.value)
    assert 'architectures=["LlamaForCausalLM"]: is no drafter' in str(error.value)
    assert "load a model as --model or with load" in str(error.value)


def test_a_missing_drafter(target: Model) -> None:
    with pytest.raises(InputError, match=r"\./absent: no such file or folder"):
        load_drafter("./absent", target)


def test_an_existing_destination_is_left_alone(target: Model, tmp_path: Path) -> None:
    drafter = random_drafter(parse_drafter_config(SETTINGS, "config.json"), target)
    with pytest.raises(InputError, match="exists already"):
        save_drafter(drafter.params, tmp_path, config=drafter.config, weights="float32")
    assert list(tmp_path.iterdir()) == []


def test_a_bundled_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Model) -> None:
    save_published(tmp_path / "pico-x", {**SETTINGS, "_notes": "A tiny drafter"})
    monkeypatch.setattr(resolve_module, "BUNDLED", tmp_path)
    bundled, _ = resolve_module.bundled_models()
    assert (bundled.name, bundled.kind, bundled.description) == ("pico-x", "drafter", "A tiny drafter")
    assert sd.load_drafter("pico-x", target).name == "pico-x"
    with pytest.raises(InputError, match="is a drafter's config, no model's"):
        sd.load("pico-x")


def test_over_several_devices(tmp_path: Path) -> None:
    """Every device holds all of the weights, loaded or drawn."""
    folder = save_published(tmp_path / "drafter", EVERYTHING)
    worker = Path(__file__).with_name("drafter_worker.py")
    assert run_worker(worker, folder, devices=2) == {"compared": 2}
