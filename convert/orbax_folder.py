"""Converted checkpoints: a folder with params as Orbax arrays, the Hugging Face config, the tokenizer's files."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import SingleDeviceSharding

from convert.listing import listed
from convert.params import named, with_arrays
from convert.whole_folder import appearing_whole, write_settings
from specdiff_jax.errors import InputError
from specdiff_jax.json_file import read_json, write_json

MANIFEST = "specdiff.json"
PARAMS = "params"
FORMAT = {"format": "specdiff-params", "version": 2}
_BESIDE_ARRAYS = 1 << 20  # bytes of a converted folder that are no arrays, or more
_PIECE = 1 << 20  # bytes of a file in memory at a time


def save(
    params: nnx.State,
    destination: Path,
    *,
    family: str,
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    text_files: Mapping[str, str],
) -> None:
    """Write a converted checkpoint. It appears under its name only when it is whole.

    Args:
        params: the decoder's state, all of one dtype.
        destination: a folder that doesn't exist yet.
        family: the model's family, for the manifest.
        config: content of config.json.
        generation_config: content of generation_config.json; empty for no such file.
        text_files: tokenizer files, name to text.

    Raises:
        InputError: the destination exists or can't be written.
    """
    arrays = named(params)
    with appearing_whole(destination) as folder:
        _check_room(destination, sum(array.size * array.dtype.itemsize for array in arrays.values()))
        write_settings(folder, config, generation_config, text_files)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save((folder / PARAMS).absolute(), arrays)
        manifest = {
            **FORMAT,
            "family": family,
            "dtype": str(next(iter(arrays.values())).dtype),
            "parameters": sum(array.size for array in arrays.values()),
            "files": _sizes(folder / PARAMS),
            "crc32": _checksums(folder / PARAMS),
        }
        write_json(folder / MANIFEST, manifest)


def restore(path: Path, abstract: nnx.State) -> nnx.State:
    """The params of a converted checkpoint, cast to the dtypes and placed on the shardings that `abstract` gives.

    The same dtype gives the same bits.

    Raises:
        InputError: the folder is incomplete, damaged or foreign, or its arrays aren't those of `abstract`.
    """
    # Orbax can't be left to find damage: it takes some flipped bits for values, and of the reads that it drops at the
    # first error the later ones still print tracebacks.
    _check_undamaged(path, read_manifest(path)["crc32"])
    targets = named(abstract)
    default = SingleDeviceSharding(jax.devices()[0])
    placed = {
        name: jax.ShapeDtypeStruct(target.shape, target.dtype, sharding=target.sharding or default)
        for name, target in targets.items()
    }
    folder = (path / PARAMS).absolute()
    with ocp.StandardCheckpointer() as checkpointer:
        _check_arrays(path, checkpointer.metadata(folder).item_metadata.tree, placed)
        arrays = checkpointer.restore(folder, placed)
    return with_arrays(abstract, arrays)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a converted checkpoint whose files are all there.

    Raises:
        InputError: there is no manifest, it is another program's or version's, or files are missing or cut short.
    """
    if not (path / MANIFEST).is_file():
        raise InputError(f"{path}: has no {MANIFEST}, so it is no whole converted model; convert it again")
    manifest = read_json(path / MANIFEST)
    found = {key: manifest.get(key) for key in FORMAT}
    listings = (manifest.get("files"), manifest.get("crc32"))
    if found != FORMAT or not all(isinstance(listing, dict) for listing in listings) or "dtype" not in manifest:
        raise InputError(
            f"{path / MANIFEST}: isn't a manifest of {FORMAT} with dtype, files and crc32; convert the model again"
        )
    sizes = _sizes(path / PARAMS)
    faults = [name for name, size in manifest["files"].items() if sizes.get(name) != size]
    if faults:
        raise InputError(f"{path / PARAMS}: files are missing or cut short, convert the model again: {listed(faults)}")
    return manifest


def _check_room(destination: Path, size: int) -> None:
    """Refuse to begin where the disk is too small: Orbax fills it and then fails in many places at once."""
    free = shutil.disk_usage(destination.absolute().parent).free
    if size + _BESIDE_ARRAYS > free:
        raise InputError(
            f"{destination}: the weights take {size / 1e9:.2f} GB, but {free / 1e9:.2f} GB are free there; "
            "make room or choose another destination"
        )


def _check_arrays(path: Path, stored: Mapping[str, Any], targets: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    faults = [f"{name} is missing" for name in targets if name not in stored]
    faults += [f"{name} is unexpected" for name in stored if name not in targets]
    faults += [
        f"{name} has shape {tuple(stored[name].shape)} instead of {target.shape}"
        for name, target in targets.items()
        if name in stored and tuple(stored[name].shape) != target.shape
    ]
    if faults:
        raise InputError(f"{path / PARAMS}: params don't fit the config beside them: {listed(faults)}")


def _check_undamaged(path: Path, checksums: Mapping[str, int]) -> None:
    actual = _checksums(path / PARAMS)
    faults = [name for name, checksum in checksums.items() if actual.get(name) != checksum]
    if faults:
        raise InputError(f"{path / PARAMS}: files are damaged, convert the model again: {listed(faults)}")


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file below a folder, by its path from there."""
    return {name: path.stat().st_size for name, path in _files(folder).items()}


def _checksums(folder: Path) -> dict[str, int]:
    """CRC-32 of every file below a folder, by its path from there; several files are read at a time."""
    files = _files(folder)
    with ThreadPoolExecutor() as pool:
        return dict(zip(files, pool.map(_checksum, files.values()), strict=True))


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            value = zlib.crc32(piece, value)
    return value


def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
