"""A target's features of all texts, made once and kept on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx
from rich.console import Console
from rich.progress import track

from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model
from specdiff_jax.train.drafter_objective import target_features
from specdiff_jax.train.objectives import Batch
from specdiff_jax.train.packing import PackedTexts

_GIGABYTE = 10**9
# How numbers are stored that numpy has no type for.
_STORED: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(np.uint16)}


def check_room(texts: PackedTexts, target: Model, layers: tuple[int, ...], most_gb: float, folder: Path) -> None:
    """Refuse features that would take more disk space than they may, or than there is.

    Args:
        texts: what they are of.
        target: whose.
        layers: behind which.
        most_gb: most space that they may take, in 10^9 bytes.
        folder: a folder on the disk.

    Raises:
        InputError: with the size, and what to do.
    """
    shape, dtype = _shape(texts, target, layers), target.dtype
    needed = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize / _GIGABYTE
    free = shutil.disk_usage(folder).free / _GIGABYTE
    advice = 'set run.features="online", or train on fewer texts'
    if needed > most_gb:
        raise InputError(
            f"cached features take {needed:.3g} GB, and run.feature_cache_gb allows {most_gb:g}: raise it, {advice}"
        )
    if needed > free:
        raise InputError(f"cached features take {needed:.3g} GB, but {folder} has {free:.3g} GB free: {advice}")


def cached_features(
    texts: PackedTexts, target: Model, layers: tuple[int, ...], batch_rows: int, file: Path
) -> np.ndarray:
    """Features of all rows, mapped into memory; the file is made where it doesn't exist yet.

    It appears under its name only when it is whole.

    Args:
        texts: what they are of.
        target: whose.
        layers: behind which.
        batch_rows: rows of a forward.
        file: where they are kept, an .npy file of [rows, width, layers x hidden size].

    Raises:
        InputError: the file holds something else, or can't be written.
    """
    shape, dtype = _shape(texts, target, layers), target.dtype
    if not file.exists():
        _make(texts, target, layers, batch_rows, file)
    try:
        found = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: is damaged ({error}): remove it, and it is made anew") from error
    if found.shape != shape or found.dtype != _STORED[str(dtype)]:
        raise InputError(f"{file}: holds {found.dtype}{list(found.shape)}, not these features: remove it")
    return found.view(ml_dtypes.bfloat16) if str(dtype) == "bfloat16" else found


def _make(texts: PackedTexts, target: Model, layers: tuple[int, ...], batch_rows: int, file: Path) -> None:
    partial, dtype = file.with_name(f"{file.name}.partial"), _STORED[str(target.dtype)]
    forward = _forward(target, layers)
    console = Console(stderr=True)
    try:
        kept = np.lib.format.open_memmap(partial, "w+", dtype=dtype, shape=_shape(texts, target, layers))
        for begin in track(
            range(0, texts.rows, batch_rows), "caching features", console=console, disable=not console.is_terminal
        ):
            rows = np.arange(begin, begin + batch_rows)
            features = np.asarray(forward(jax.tree.map(jnp.asarray, texts.take(rows % texts.rows))))
            count = min(batch_rows, texts.rows - begin)
            kept[begin : begin + count] = features[:count].view(kept.dtype)
        kept.flush()
        del kept
        os.replace(partial, file)
    except OSError as error:
        raise InputError(f"{file}: can't be written ({error.strerror or error})") from error
    finally:
        partial.unlink(missing_ok=True)


def _forward(target: Model, layers: tuple[int, ...]) -> Callable[[Batch], jax.Array]:
    @jax.jit
    def forward(params: nnx.State, batch: Batch) -> jax.Array:
        return jnp.concatenate(target_features(nnx.merge(target.graphdef, params), batch, layers), axis=-1)

    return lambda batch: forward(target.params, batch)


def _shape(texts: PackedTexts, target: Model, layers: tuple[int, ...]) -> tuple[int, int, int]:
    return (*texts.tokens.shape, len(layers) * target.config.hidden_size)
