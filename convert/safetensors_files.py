"""Tensors of a Hugging Face folder: one safetensors file, or shards with an index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open

from convert.int8_rows import dequantize, scale_name
from convert.listing import listed
from convert.tensors import TensorInfo
from specdiff_jax.errors import InputError
from specdiff_jax.json_file import read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
READABLE = ("F64", "F32", "F16", "BF16")
INT8 = "I8"


class SafetensorsFiles:
    """Tensor source over safetensors files.

    A file is opened anew for every read: it is mapped into memory, and pages of a mapping that stays open pile up.
    """

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, Path],
        tensors: Mapping[str, TensorInfo],
        scales: Mapping[str, np.ndarray],
    ) -> None:
        self.location = str(folder)
        self.tensors = tensors
        self._files = files
        self._scales = scales

    def read(self, name: str) -> np.ndarray:
        """One tensor in its own dtype, or in float32 where it is stored as int8 rows."""
        stored = read_tensor(self._files[name], name)
        return dequantize(stored, self._scales[name]) if name in self._scales else stored


def open_safetensors(folder: Path, *, int8_rows: bool = False) -> SafetensorsFiles:
    """The tensors of a folder, after a check that every file is whole and agrees with the index.

    Args:
        folder: where the files are.
        int8_rows: whether its config says that int8 tensors have scales beside them; else int8 is refused.

    Raises:
        InputError: there is no safetensors file, one is missing or truncated, index and shards disagree, a tensor's
            dtype is none of float64, float32, float16 and bfloat16, or an int8 tensor has no usable scales.
    """
    if (folder / SINGLE).is_file():
        shards = {folder / SINGLE: read_headers(folder / SINGLE)}
    elif (folder / INDEX).is_file():
        shards = read_shards(folder)
    else:
        raise InputError(no_safetensors(folder))
    files = {name: path for path, headers in shards.items() for name in headers}
    tensors = {name: info for headers in shards.values() for name, info in headers.items()}
    _check_dtypes(folder, tensors, (*READABLE, INT8) if int8_rows else READABLE)
    scales = read_scales(folder, files, tensors)
    weights = {name: info for name, info in tensors.items() if name not in set(map(scale_name, scales))}
    return SafetensorsFiles(folder, files, weights, scales)


def read_tensor(path: Path, name: str) -> np.ndarray:
    """One tensor as it is stored."""
    with safe_open(path, framework="np") as file:
        return file.get_tensor(name)


def read_scales(
    folder: Path, files: Mapping[str, Path], tensors: Mapping[str, TensorInfo]
) -> dict[str, Float32[np.ndarray, ...]]:
    """The scales of every int8 tensor, by the tensor's name.

    Raises:
        InputError: one line with every tensor whose scales are missing, misshapen, or no finite positive numbers.
    """
    scales, faults = {}, []
    for name in (name for name, info in tensors.items() if info.dtype == INT8):
        beside, expected = scale_name(name), TensorInfo(tensors[name].shape[:-1], "F32")
        found = tensors.get(beside)
        if found is None:
            faults.append(f"{name} is int8 and {beside} is missing")
        elif found != expected:
            faults.append(f"{beside} is {found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}")
        else:
            scales[name] = read_tensor(files[beside], beside)
            if not (np.isfinite(scales[name]) & (scales[name] >= 0)).all():
                faults.append(f"{beside} has NaN, infinite or negative scales")
    if faults:
        raise InputError(f"{folder}: int8 weights need their scales, get the folder anew: {listed(faults)}")
    return scales


def read_headers(path: Path) -> dict[str, TensorInfo]:
    """Headers of one safetensors file, which is mapped but not read."""
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - the handle is no mapping
            headers = {name: TensorInfo(tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: truncated or no safetensors file ({error}); download it again") from error
    return headers


def read_shards(folder: Path) -> dict[Path, dict[str, TensorInfo]]:
    """Headers of every shard that the index names, checked against the index."""
    index = folder / INDEX
    expected = shard_names(index)
    missing = [file for file in expected if not (folder / file).is_file()]
    if missing:
        raise InputError(f"{index}: shards are missing from the folder, download them again: {listed(missing)}")
    shards = {folder / file: read_headers(folder / file) for file in expected}
    faults = []
    for (path, headers), names in zip(shards.items(), expected.values(), strict=True):
        faults += [f"{name} is in the index but not in {path.name}" for name in sorted(names - headers.keys())]
        faults += [f"{name} is in {path.name} but not in the index" for name in sorted(headers.keys() - names)]
    if faults:
        raise InputError(f"{index}: index and shards disagree, download them again: {listed(faults)}")
    return shards


def shard_names(index: Path) -> dict[str, set[str]]:
    """The tensor names of every shard, by file name, as the index says."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index}: has no weight_map, which says what file each tensor is in")
    shards: dict[str, set[str]] = defaultdict(set)
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise InputError(f"{index}: {name} must map to a file name in the same folder, not {file!r}")
        shards[file].add(name)
    return dict(sorted(shards.items()))


def no_safetensors(folder: Path) -> str:
    """Why a folder without the expected weight files can't be used."""
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        return (
            f"{folder}: has only pickle checkpoints ({listed(pickles)}), which can run any code when opened and are "
            "never read; convert them to safetensors first"
        )
    return f"{folder}: has neither {SINGLE} nor {INDEX}; give a folder with the weights as safetensors"


def _check_dtypes(folder: Path, tensors: Mapping[str, TensorInfo], readable: Sequence[str]) -> None:
    faults = [f"{name} ({info.dtype})" for name, info in tensors.items() if info.dtype not in readable]
    if faults:
        raise InputError(
            f"{folder}: give a checkpoint that isn't quantised; only {', '.join(readable)} are read: {listed(faults)}"
        )
