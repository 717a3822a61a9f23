"""Params back to a Hugging Face folder: its names and its layout, in one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import SafetensorError
from safetensors.numpy import save_file

from convert.int8_rows import quantize, scale_name
from convert.names import Part, parameter_parts
from convert.params import named
from convert.safetensors_files import SINGLE
from convert.whole_folder import appearing_whole, write_settings
from specdiff_jax.config import INT8_ROWS, ModelConfig
from specdiff_jax.errors import InputError

Weights = Literal["float32", "bfloat16", "int8"]


def save(
    params: nnx.State,
    destination: Path,
    *,
    config: Mapping[str, Any],
    model_config: ModelConfig,
    generation_config: Mapping[str, Any],
    text_files: Mapping[str, str],
    weights: Weights,
) -> None:
    """Write a decoder as a Hugging Face folder: the inverse of loading one.

    Args:
        params: the decoder's state.
        destination: a folder that doesn't exist yet; it appears under its name only when it is whole.
        config: content of config.json; what it says of the weights' dtype is replaced by what is true.
        model_config: the settings that `config` holds.
        generation_config: content of generation_config.json; empty for no such file.
        text_files: tokenizer files, name to text.
        weights: how they are stored. "float32" and "bfloat16" are read by Transformers too, where it has the class.
            "int8" is read by this library alone: matrices are int8 with a float32 scale a row beside them, under the
            matrix's name and "_scale"; vectors keep their dtype.

    Raises:
        InputError: the destination exists or can't be written, or NaN or infinite weights are to be stored as int8.
    """
    table = parameter_parts(model_config, ())
    save_parts(params, table, destination, config, weights, generation_config=generation_config, text_files=text_files)


def save_parts(
    params: nnx.State,
    table: Mapping[str, Sequence[Part]],
    destination: Path,
    config: Mapping[str, Any],
    weights: Weights,
    *,
    generation_config: Mapping[str, Any],
    text_files: Mapping[str, str],
) -> None:
    """The same for any module, by the table of its parameters' parts.

    Raises:
        InputError: as `save` does.
    """
    with appearing_whole(destination) as folder:
        write_settings(folder, _settings(config, weights), generation_config, text_files)
        try:
            save_file(_tensors(params, table, weights), folder / SINGLE, metadata={"format": "pt"})
        except SafetensorError as error:
            raise InputError(f"{destination}: can't be written ({error})") from error
        # safetensors lets nobody else read its file.
        (folder / SINGLE).chmod((folder / "config.json").stat().st_mode)


def _settings(config: Mapping[str, Any], weights: Weights) -> dict[str, Any]:
    """The config, saying how these weights are stored."""
    replaced = ("dtype", "torch_dtype", "quantization_config")
    kept = {key: value for key, value in config.items() if key not in replaced}
    return {**kept, "quantization_config": INT8_ROWS} if weights == "int8" else {**kept, "dtype": weights}


def _tensors(params: nnx.State, table: Mapping[str, Sequence[Part]], weights: Weights) -> dict[str, np.ndarray]:
    """What the file holds, by name."""
    tensors: dict[str, np.ndarray] = {}
    for path, array in named(params).items():
        parameter = np.asarray(array)
        for part in table[path]:
            # safetensors writes the memory of an array as it lies, whatever its strides.
            tensor = np.ascontiguousarray(part.unpack(parameter))
            tensors |= _stored(part.name, tensor, weights)
    return tensors


def _stored(name: str, tensor: np.ndarray, weights: Weights) -> dict[str, np.ndarray]:
    """One tensor as it is stored, with its scales where it has any."""
    if weights != "int8":
        return {name: tensor.astype(jnp.dtype(weights))}
    if tensor.ndim < 2:
        return {name: tensor}
    if not np.isfinite(tensor).all():
        raise InputError(f"{name}: has NaN or infinite weights, which int8 can't hold; save float32 to look at them")
    steps, scales = quantize(tensor)
    return {name: steps, scale_name(name): scales}
