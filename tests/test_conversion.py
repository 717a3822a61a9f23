"""Converted folders: which dtype they keep, and that drafters have them too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from drafter_files import TARGET, save_published
from safetensors.numpy import load_file, save_file
from same_model import assert_same_model
from tiny_models import assert_same, by_path

from specdiff_jax import conversion
from specdiff_jax.conversion import convert_checkpoint
from specdiff_jax.drafter_loading import load_drafter
from specdiff_jax.errors import InputError
from specdiff_jax.loading import load, random_model


def test_converting_keeps_the_checkpoint_dtype(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (source / name).write_bytes((tiny_checkpoint / name).read_bytes())
    tensors = load_file(tiny_checkpoint / "model.safetensors")
    stored: dict[str, tuple[Any, str]] = {
        "bfloat16": (jnp.bfloat16, "bfloat16"),
        "float16": (np.float16, "float32"),
        "float32": (np.float32, "float32"),
    }
    for name, (dtype, expected) in stored.items():
        save_file({key: tensor.astype(dtype) for key, tensor in tensors.items()}, source / "model.safetensors")
        convert_checkpoint(source, tmp_path / name)
        assert f'"dtype": "{expected}"' in (tmp_path / name / "specdiff.json").read_text()
        assert_same_model(load(tmp_path / name, dtype="float32"), load(source, dtype="float32"))
    convert_checkpoint(source, tmp_path / "asked", dtype="bfloat16")
    assert '"dtype": "bfloat16"' in (tmp_path / "asked" / "specdiff.json").read_text()


def test_converting_to_an_existing_folder_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "open_checkpoint", lambda path: pytest.fail("opened"))
    with pytest.raises(InputError, match="exists already"):
        convert_checkpoint(tmp_path, tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_converted_drafter_loads_the_same(dtype: str, tmp_path: Path) -> None:
    target = random_model(TARGET, dtype=dtype)
    source, converted = save_published(tmp_path / "source"), tmp_path / "converted"
    convert_checkpoint(source, converted)
    found, expected = load_drafter(converted, target), load_drafter(source, target)
    assert json.loads((converted / "specdiff.json").read_text())["family"] == "dflash"
    assert (found.config, found.graphdef) == (expected.config, expected.graphdef)
    assert_same(by_path(found.params), by_path(expected.params))


def test_a_converted_drafter_is_no_model(tmp_path: Path) -> None:
    convert_checkpoint(save_published(tmp_path / "source"), tmp_path / "converted")
    with pytest.raises(InputError, match=r"is a drafter's config, no model's"):
        load(tmp_path / "converted")
