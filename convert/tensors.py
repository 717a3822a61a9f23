"""What the converter asks of a checkpoint's tensors, whatever file they lie in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True)
class TensorInfo:
    """Header of a tensor.

    Attributes:
        shape: in the order of Hugging Face, that is (out, in) for a linear layer.
        dtype: how it is stored, by the name that its file format uses ("BF16", "F32", "Q4_1").
    """

    shape: tuple[int, ...]
    dtype: str


@runtime_checkable
class TensorSource(Protocol):
    """Tensors by their Hugging Face names. Headers are known from the start; values are read when asked for."""

    @property
    def location(self) -> str:
        """The checkpoint's path, for messages."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Header of every tensor."""
        ...

    def read(self, name: str) -> np.ndarray:
        """One tensor on the host, in a float dtype that holds the stored values exactly."""
        ...
