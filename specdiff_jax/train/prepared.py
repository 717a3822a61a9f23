"""What a run trains on, ready for the devices: kept in the run's folder, so that it is made once."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from convert.whole_folder import write_settings
from specdiff_jax.errors import InputError
from specdiff_jax.json_file import read_json
from specdiff_jax.text import TOKENIZER_FILES
from specdiff_jax.train.packing import PackedTexts

_TEXTS, _VALIDATION = "texts.npz", "validation.npz"


@dataclass(frozen=True)
class Prepared:
    """All that a run needs beside its recipe and the weights that it begins with.

    Attributes:
        config: content of config.json.
        generation_config: content of generation_config.json; empty for none.
        text_files: tokenizer files, name to text.
        texts: what to learn.
        validation: texts whose loss is measured; None for none.
    """

    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    text_files: Mapping[str, str]
    texts: PackedTexts
    validation: PackedTexts | None


def write_prepared(prepared: Prepared, folder: Path) -> None:
    """Write everything into a folder, which exists."""
    write_settings(folder, prepared.config, prepared.generation_config, prepared.text_files)
    _write_texts(prepared.texts, folder / _TEXTS)
    if prepared.validation is not None:
        _write_texts(prepared.validation, folder / _VALIDATION)


def read_prepared(folder: Path) -> Prepared:
    """What `write_prepared` wrote.

    Raises:
        InputError: something is missing or damaged.
    """
    generation, validation = folder / "generation_config.json", folder / _VALIDATION
    return Prepared(
        read_json(folder / "config.json"),
        read_json(generation) if generation.is_file() else {},
        {name: (folder / name).read_text(encoding="utf-8") for name in TOKENIZER_FILES if (folder / name).is_file()},
        _read_texts(folder / _TEXTS),
        _read_texts(validation) if validation.is_file() else None,
    )


def _write_texts(texts: PackedTexts, file: Path) -> None:
    arrays = {field.name: np.asarray(getattr(texts, field.name)) for field in fields(texts)}
    np.savez(file, allow_pickle=False, **arrays)


def _read_texts(file: Path) -> PackedTexts:
    try:
        # Opened here, since np.load leaves a damaged file open.
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            arrays = {field.name: stored[field.name] for field in fields(PackedTexts)}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{file}: is damaged ({error}): start the run again in another folder") from error
    return PackedTexts(**{**arrays, "dropped": int(arrays["dropped"])})
