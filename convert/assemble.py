"""From a checkpoint's tensors to parameters on their devices, one parameter at a time."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Container, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.console import Console
from rich.progress import Progress

from convert.listing import listed
from convert.names import IGNORED, Part, parameter_parts, spare_names
from convert.params import named, with_arrays
from convert.tensors import TensorSource
from specdiff_jax.config import ModelConfig
from specdiff_jax.errors import InputError

PROGRESS_FROM_BYTES = 10**9


class NonFiniteWeightsWarning(UserWarning):
    """A checkpoint has NaN or infinite weights, or weights that overflow the dtype they are loaded in."""


def load_parameters(source: TensorSource, config: ModelConfig, abstract: nnx.State) -> nnx.State:
    """Read, pack, cast and place every parameter of a decoder.

    Args:
        source: the checkpoint's tensors.
        config: settings of the model.
        abstract: the decoder's state with a `jax.ShapeDtypeStruct` for every parameter; its sharding says where the
            parameter goes (None: the default device).

    Raises:
        InputError: tensors are missing, unexpected or misshapen; all of them are listed, before anything is read.

    Warns:
        NonFiniteWeightsWarning: some weights are NaN or infinite; it names their tensors.
    """
    table = parameter_parts(config, source.tensors)
    check_tensors(source, table, config.family, spare_names(config))
    return assemble(source, table, abstract)


def assemble(source: TensorSource, table: Mapping[str, Sequence[Part]], abstract: nnx.State) -> nnx.State:
    """Read, pack, cast and place every parameter of a table whose tensors were checked.

    A parameter is cast once, from the stored values to its own dtype. Beside what has reached its device, the host
    holds one parameter and one of its tensors at a time.

    Args:
        source: the checkpoint's tensors.
        table: the parts of every parameter.
        abstract: a `jax.ShapeDtypeStruct` for every parameter; its sharding says where the parameter goes (None: the
            default device).

    Warns:
        NonFiniteWeightsWarning: some weights are NaN or infinite; it names their tensors.
    """
    targets = named(abstract)
    total = sum(target.size * target.dtype.itemsize for target in targets.values())
    arrays: dict[str, jax.Array] = {}
    finite: dict[str, jax.Array] = {}
    hidden = total < PROGRESS_FROM_BYTES or not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=hidden) as progress:
        task = progress.add_task("loading weights", total=total)
        for name, target in targets.items():
            packed = pack(source, table[name], target.shape, target.dtype)
            # Waiting here keeps the host from running ahead of the copies to the device.
            arrays[name] = jax.device_put(packed, target.sharding).block_until_ready()
            finite[name] = _all_finite(arrays[name])
            progress.advance(task, packed.nbytes)
    _warn_of_nonfinite([name for name in arrays if not finite[name]], arrays, table, source.location)
    return with_arrays(abstract, arrays)


def check_tensors(
    source: TensorSource, table: Mapping[str, Sequence[Part]], kind: str, spare: Container[str] = ()
) -> None:
    """Compare headers with the name table; nothing is read.

    Args:
        source: the checkpoint's tensors.
        table: the parts of every parameter.
        kind: what the config describes, for the message.
        spare: tensors that may be there and aren't used.

    Raises:
        InputError: one line with every missing, misshapen and unexpected tensor.
    """
    tensors = source.tensors
    expected = {part.name: part.shape for parts in table.values() for part in parts}
    faults = [f"{name} is missing" for name in expected if name not in tensors]
    faults += [
        f"{name} has shape {tensors[name].shape} instead of {shape}"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    ]
    faults += [
        f"{name} is unexpected"
        for name in tensors
        if name not in expected and name not in spare and not IGNORED.fullmatch(name)
    ]
    if faults:
        raise InputError(f"{source.location}: weights don't fit the {kind} config beside them: {listed(faults)}")


def pack(source: TensorSource, parts: Sequence[Part], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """One parameter, assembled on the host in its final dtype."""
    parameter = np.empty(shape, dtype)
    with np.errstate(over="ignore"):  # an overflow becomes infinity, of which the loader warns by name
        for part in parts:
            part.pack(source.read(part.name), parameter)
    return parameter


@jax.jit
def _all_finite(array: jax.Array) -> jax.Array:
    return jnp.isfinite(array).all()


def _warn_of_nonfinite(
    parameters: Sequence[str], arrays: Mapping[str, jax.Array], table: Mapping[str, Sequence[Part]], location: str
) -> None:
    tensors = [
        part.name
        for name in parameters
        for part in table[name]
        if not np.isfinite(part.unpack(np.asarray(arrays[name]))).all()
    ]
    if tensors:
        warnings.warn(
            f"{location}: NaN or infinite weights in {listed(tensors)}", NonFiniteWeightsWarning, stacklevel=4
        )
