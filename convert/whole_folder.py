"""Folders and files that appear under their name only when they are whole."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specdiff_jax.errors import InputError
from specdiff_jax.json_file import write_json


def check_free(destination: Path) -> None:
    """Refuse a destination that exists, or whose parent folder doesn't.

    Raises:
        InputError: as said.
    """
    if os.path.exists(destination):  # unlike Path.exists, no error for a name that is too long
        raise InputError(f"{destination}: exists already; choose another destination or remove it")
    if not destination.absolute().parent.is_dir():
        raise InputError(f"{destination.absolute().parent}: is no folder; create it first")


@contextmanager
def appearing_whole(destination: Path) -> Iterator[Path]:
    """A temporary folder beside the destination, renamed to it at the end, removed on any failure.

    Raises:
        InputError: the destination isn't free or can't be written.
    """
    check_free(destination)
    temporary = destination.absolute().with_name(f".{destination.name}.{uuid.uuid4().hex}.partial")
    try:
        temporary.mkdir()
        yield temporary
        os.rename(temporary, destination)
    except OSError as error:
        raise InputError(f"{destination}: can't be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def file_appearing_whole(destination: Path) -> Iterator[Path]:
    """A temporary file beside the destination, with the same suffix, renamed to it at the end, removed on any failure.

    Raises:
        InputError: the destination can't be written.
    """
    temporary = destination.with_name(f".{destination.stem}.partial{destination.suffix}")
    try:
        yield temporary
        os.replace(temporary, destination)
    except OSError as error:
        raise InputError(f"{destination}: can't be written ({error.strerror or error})") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_settings(
    folder: Path, config: Mapping[str, Any], generation_config: Mapping[str, Any], text_files: Mapping[str, str]
) -> None:
    """Write what stands beside the weights.

    Args:
        folder: where.
        config: content of config.json.
        generation_config: content of generation_config.json; an empty one makes no file, as Transformers would take the
            stop ids from it alone.
        text_files: tokenizer files, name to text, kept to the byte.
    """
    write_json(folder / "config.json", config)
    if generation_config:
        write_json(folder / "generation_config.json", generation_config)
    for name, text in text_files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
