"""GGUF files: metadata, and tensors under their Hugging Face names and in the Hugging Face order of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor, dequantize
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import quant_shape_to_byte_shape

from convert.gguf_metadata import ArchitectureKeys
from convert.tensors import TensorInfo
from specdiff_jax.errors import InputError

MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
EXPERT_NAMES = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# llama.cpp stores these with the two rotary halves of each head interleaved, for this architecture alone.
PERMUTED_ARCHITECTURE = "llama"
PERMUTED = ("attn_q", "attn_k")


class FastReader(GGUFReader):
    """The reader over a plain array. It slices its data for every string, and a slice of `np.memmap` is slow."""

    @property  # type: ignore[override]
    def data(self) -> np.ndarray:
        """The file's bytes."""
        return self._data

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._data = np.asarray(mapped)


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's bytes lie and how to read them.

    Attributes:
        offset: of the first byte in the file.
        type: how the values are stored.
        shape: (out, in) for a linear layer.
        interleaved: rows of a head, where its rotary halves are interleaved; None where the rows are in order.
    """

    offset: int
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    interleaved: int | None = None


class GgufFile:
    """Tensor source over one GGUF file; values are dequantised to float32.

    Attributes:
        metadata: the file's key/value pairs.
        keys: those that describe the architecture.
    """

    def __init__(
        self, path: Path, metadata: dict[str, Any], keys: ArchitectureKeys, stored: dict[str, StoredTensor]
    ) -> None:
        self.location = str(path)
        self.metadata = metadata
        self.keys = keys
        self.tensors = {name: TensorInfo(tensor.shape, tensor.type.name) for name, tensor in stored.items()}
        self._path = path
        self._stored = stored

    def read(self, name: str) -> np.ndarray:
        """One tensor in float32."""
        tensor = self._stored[name]
        bytes_shape = quant_shape_to_byte_shape(tensor.shape, tensor.type)
        raw = np.fromfile(self._path, np.uint8, count=int(np.prod(bytes_shape)), offset=tensor.offset)
        values = dequantize(raw.reshape(bytes_shape), tensor.type)
        return values if tensor.interleaved is None else in_halves(values, tensor.interleaved)


def open_gguf(path: Path) -> GgufFile:
    """Read a GGUF file's metadata and headers.

    Raises:
        InputError: it is truncated, split over several files, of an architecture that isn't supported, or has a tensor
            type that can't be dequantised.
    """
    try:
        reader = FastReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror})") from error
    except (ValueError, IndexError, KeyError) as error:  # what slices of a short file and broken texts give
        raise InputError(f"{path}: truncated or no GGUF file ({error}); download it again") from error
    if reader.byte_order != "I":
        raise InputError(f"{path}: is of the other byte order; convert it with gguf-convert-endian first")
    if metadata.get("split.count", 1) > 1:
        raise InputError(f"{path}: is one of {metadata['split.count']} parts; merge them with llama-gguf-split first")
    for kind in {tensor.tensor_type for tensor in reader.tensors}:
        _check_type(kind, path)
    keys = ArchitectureKeys(metadata, str(path))
    interleaved = keys.head_dim if keys.architecture == PERMUTED_ARCHITECTURE else None
    stored = {name: entry for tensor in reader.tensors for name, entry in _stored(tensor, interleaved)}
    return GgufFile(path, metadata, keys, stored)


def in_halves(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of a q or k projection with each head's rotary pairs (0, 1), (2, 3), ... put back into two halves."""
    pairs = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _stored(tensor: ReaderTensor, interleaved: int | None) -> Iterator[tuple[str, StoredTensor]]:
    """The Hugging Face tensors that one GGUF tensor holds; a name without a counterpart stays as it is."""
    shape = tuple(int(size) for size in reversed(tensor.shape))
    match = LAYER_TENSOR.fullmatch(tensor.name)
    layer, part, kind = match.groups() if match else ("", "", "")
    prefix = f"model.layers.{layer}"
    if part in EXPERT_NAMES:
        step = tensor.n_bytes // shape[0]
        for expert in range(shape[0]):
            name = f"{prefix}.mlp.experts.{expert}.{EXPERT_NAMES[part]}.{kind}"
            yield name, StoredTensor(tensor.data_offset + expert * step, tensor.tensor_type, shape[1:])
    elif part in LAYER_NAMES:
        name = f"{prefix}.{LAYER_NAMES[part]}.{kind}"
        rows = interleaved if part in PERMUTED else None
        yield name, StoredTensor(tensor.data_offset, tensor.tensor_type, shape, rows)
    else:
        name = MODEL_NAMES.get(tensor.name, tensor.name)
        yield name, StoredTensor(tensor.data_offset, tensor.tensor_type, shape)


def _check_type(kind: GGMLQuantizationType, path: Path) -> None:
    block = np.zeros(GGML_QUANT_SIZES[kind][1], np.uint8)
    try:
        dequantize(block, kind)
    except NotImplementedError as error:
        raise InputError(f"{path}: has {kind.name} tensors, which can't be dequantised; give another quant") from error
