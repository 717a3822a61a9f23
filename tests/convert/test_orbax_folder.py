"""Converted folders: bits, shardings, and that nothing half-written is ever taken for whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from tiny_models import abstract_state, assert_same, by_path, read_settings
from workers import run_worker

from convert import orbax_folder
from convert.checkpoint import open_checkpoint
from convert.orbax_folder import MANIFEST, restore, save
from specdiff_jax.config import ModelConfig
from specdiff_jax.errors import InputError
from specdiff_jax.model import Decoder

TEXTS = {"tokenizer.json": '{"é": "\\r\\n"}\r\n', "chat_template.jinja": "{{ x }}"}
FILES: dict[str, Any] = {"config": {"a": 1}, "generation_config": {"eos_token_id": [2, 3]}, "text_files": TEXTS}


@pytest.fixture
def config(family_folder: Callable[[str], Path]) -> ModelConfig:
    return read_settings(family_folder("Qwen3"))


def random_params(config: ModelConfig, dtype: str = "float32") -> nnx.State:
    return nnx.state(Decoder(config, dtype=dtype, rngs=nnx.Rngs(3)))


@pytest.fixture
def converted(config: ModelConfig, tmp_path: Path) -> Path:
    """A converted folder, free to be damaged."""
    save(random_params(config), tmp_path / "converted", family=config.family, **FILES)
    return tmp_path / "converted"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_round_trip_is_bit_equal(dtype: str, config: ModelConfig, tmp_path: Path) -> None:
    params = random_params(config, dtype)
    save(params, tmp_path / "converted", family=config.family, **FILES)
    restored = restore(tmp_path / "converted", abstract_state(config, dtype))
    assert jax.tree.structure(restored) == jax.tree.structure(params)
    assert_same(by_path(restored), by_path(params))
    manifest = json.loads((tmp_path / "converted" / MANIFEST).read_text())
    assert (manifest["family"], manifest["dtype"]) == ("qwen3", dtype)
    assert manifest["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(params))


def test_restore_casts(config: ModelConfig, converted: Path) -> None:
    expected = {path: array.astype("bfloat16") for path, array in by_path(random_params(config)).items()}
    assert_same(by_path(restore(converted, abstract_state(config, "bfloat16"))), expected)


def test_settings_and_texts_come_back(converted: Path) -> None:
    checkpoint = open_checkpoint(converted)
    assert (checkpoint.kind, checkpoint.dtype, checkpoint.tensors) == ("orbax", "float32", None)
    assert checkpoint.config == FILES["config"]
    assert checkpoint.generation_config == FILES["generation_config"]
    assert (converted / "tokenizer.json").read_bytes() == TEXTS["tokenizer.json"].encode()
    assert checkpoint.text_files.keys() == TEXTS.keys()


def test_no_pickle(converted: Path) -> None:
    files = [path for path in converted.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix in (".pkl", ".pt", ".bin") or path.read_bytes()[:1] == b"\x80"]


def test_another_sharding(config: ModelConfig, family_folder: Callable[[str], Path], converted: Path) -> None:
    expected = converted.parent / "expected.npz"
    arrays = by_path(random_params(config))
    np.savez(expected, **arrays)
    worker = Path(__file__).with_name("sharded_restore_worker.py")
    result = run_worker(worker, converted, expected, family_folder("Qwen3"), devices=8)
    assert result == {"compared": len(arrays)}


def test_an_existing_destination_is_refused_before_any_work(
    config: ModelConfig, converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ocp, "StandardCheckpointer", lambda: pytest.fail("work was done"))
    before = sorted(converted.rglob("*"))
    with pytest.raises(InputError, match=r"converted: exists already"):
        save(random_params(config), converted, family=config.family, **FILES)
    assert sorted(converted.rglob("*")) == before


def test_a_destination_without_a_parent(config: ModelConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="create it first"):
        save(random_params(config), tmp_path / "none" / "converted", family=config.family, **FILES)


def test_a_disk_that_is_too_small(config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(InputError, match=r"converted: the weights take 0\.00 GB, but 0\.00 GB are free there"):
        save(random_params(config), tmp_path / "converted", family=config.family, **FILES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_crash_half_way_leaves_nothing(
    failure: type[BaseException], config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(folder: Path) -> dict[str, int]:
        assert (folder / "manifest.ocdbt").is_file()  # the params are written by now
        raise failure

    monkeypatch.setattr(orbax_folder, "_sizes", crash)
    with pytest.raises(failure):
        save(random_params(config), tmp_path / "converted", family=config.family, **FILES)
    assert list(tmp_path.iterdir()) == []


def refused(path: Path, config: ModelConfig) -> str:
    """The one line with which the folder is refused."""
    with pytest.raises(InputError) as error:
        restore(path, abstract_state(config))
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)


def test_a_folder_without_manifest(config: ModelConfig, converted: Path) -> None:
    (converted / MANIFEST).unlink()
    assert MANIFEST in refused(converted, config)
    with pytest.raises(InputError):
        open_checkpoint(converted)


@pytest.mark.parametrize(
    "change", [{"format": "other"}, {"version": 1}, {"files": None}, {"crc32": None}, {"dtype": ...}]
)
def test_a_foreign_manifest(change: dict[str, Any], config: ModelConfig, converted: Path) -> None:
    manifest = {**json.loads((converted / MANIFEST).read_text()), **change}
    (converted / MANIFEST).write_text(json.dumps({key: value for key, value in manifest.items() if value is not ...}))
    assert "isn't a manifest" in refused(converted, config)


def test_missing_and_short_files(config: ModelConfig, converted: Path) -> None:
    largest = max((path for path in converted.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    (converted / "params" / "_METADATA").unlink()
    message = refused(converted, config)
    assert largest.relative_to(converted / "params").as_posix() in message
    assert "_METADATA" in message


@pytest.mark.parametrize("damaged", ["params/manifest.ocdbt", "params/_METADATA", "largest"])
def test_damaged_data(damaged: str, config: ModelConfig, converted: Path) -> None:
    files = [path for path in (converted / "params").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    path = largest if damaged == "largest" else converted / damaged
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # one bit
    path.write_bytes(content)
    message = refused(converted, config)
    assert "convert the model again" in message
    assert message.endswith(path.relative_to(converted / "params").as_posix())


def test_arrays_that_do_not_fit_the_config(family_folder: Callable[[str], Path], converted: Path) -> None:
    message = refused(converted, read_settings(family_folder("Llama with biases")))
    assert "layers.0.attention.qkv_bias is missing" in message
    assert "layers.0.attention.qk_norm.query is unexpected" in message
