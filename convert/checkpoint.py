"""A checkpoint of any supported kind, opened: its settings and texts read, its tensors ready to be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from convert.gguf_config import generation_config, model_config
from convert.gguf_file import open_gguf
from convert.gguf_tokenizer import tokenizer_files
from convert.names import IGNORED
from convert.orbax_folder import MANIFEST, read_manifest
from convert.safetensors_files import PICKLE_SUFFIXES, open_safetensors
from convert.tensors import TensorSource
from specdiff_jax.config import INT8_ROWS
from specdiff_jax.errors import InputError
from specdiff_jax.json_file import read_json
from specdiff_jax.text import TOKENIZER_FILES


@dataclass(frozen=True)
class Checkpoint:
    """What a model is made from.

    Attributes:
        path: the folder or file.
        kind: a Hugging Face folder with float weights or with int8 rows, a GGUF file, or a converted folder.
        config: content of config.json (built from the metadata of a GGUF file), less the mark of int8 rows, which
            `tensors` gives as the floats that they stand for.
        generation_config: content of generation_config.json; empty where there is none.
        text_files: tokenizer and template files as text, by file name.
        dtype: "bfloat16" or "float32", the narrower that holds every weight exactly.
        tensors: the weights by Hugging Face names; None for a converted folder, which Orbax reads.
    """

    path: Path
    kind: Literal["safetensors", "int8", "gguf", "orbax"]
    config: dict[str, Any]
    generation_config: dict[str, Any]
    text_files: dict[str, str]
    dtype: str
    tensors: TensorSource | None

    @property
    def config_location(self) -> str:
        """What to call the config in messages."""
        return str(self.path if self.kind == "gguf" else self.path / "config.json")


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a Hugging Face folder, a GGUF file or a converted folder; no weights are read.

    Raises:
        InputError: it is none of these, or it is incomplete or damaged.
    """
    if path.is_dir():
        return _open_folder(path)
    if path.suffix == ".gguf":
        return _open_gguf(path)
    if path.suffix in PICKLE_SUFFIXES:
        raise InputError(
            f"{path}: a pickle checkpoint can run any code when it is opened and is never read; "
            "convert it to safetensors first"
        )
    raise InputError(f"{path}: give the folder that holds config.json and the weights, or a .gguf file")


def _open_folder(path: Path) -> Checkpoint:
    converted = (path / MANIFEST).exists()
    if not (path / "config.json").is_file():
        raise InputError(f"{path}: has no config.json; give the folder of a whole model")
    config = read_json(path / "config.json")
    int8_rows = config.get("quantization_config") == INT8_ROWS
    if int8_rows:
        del config["quantization_config"]
    if converted:
        tensors, dtype = None, read_manifest(path)["dtype"]
    else:
        tensors = open_safetensors(path, int8_rows=int8_rows)
        dtype = _lossless_dtype(tensors)
    generation = path / "generation_config.json"
    return Checkpoint(
        path=path,
        kind="orbax" if converted else "int8" if int8_rows else "safetensors",
        config=config,
        generation_config=read_json(generation) if generation.is_file() else {},
        text_files={name: _read_text(path / name) for name in TOKENIZER_FILES if (path / name).is_file()},
        dtype=dtype,
        tensors=tensors,
    )


def _open_gguf(path: Path) -> Checkpoint:
    file = open_gguf(path)
    return Checkpoint(
        path=path,
        kind="gguf",
        config=model_config(file),
        generation_config=generation_config(file),
        text_files=tokenizer_files(file),
        dtype=_lossless_dtype(file),
        tensors=file,
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read as UTF-8 text ({error})") from error


def _lossless_dtype(source: TensorSource) -> str:
    """The narrower of bfloat16 and float32 that holds every weight exactly (float64 is rounded to float32).

    Float16 and the quantised GGUF types have values that bfloat16 can't hold.
    """
    dtypes = {info.dtype for name, info in source.tensors.items() if not IGNORED.fullmatch(name)}
    return "bfloat16" if dtypes == {"BF16"} else "float32"
