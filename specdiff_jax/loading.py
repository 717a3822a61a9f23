"""From a checkpoint's name to a model that is ready to decode."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from convert.assemble import load_parameters
from convert.checkpoint import Checkpoint, open_checkpoint
from convert.orbax_folder import restore
from convert.resolve import resolve
from pallas_kernels.implementation import IMPLEMENTATIONS, Implementation, default_implementation
from specdiff_jax.config import ModelConfig, parse_config, read_stop_ids
from specdiff_jax.errors import InputError
from specdiff_jax.model import Decoder
from specdiff_jax.parallel import check_parallel, make_mesh, shard_abstract
from specdiff_jax.text import TextTokenizer

DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded target.

    Attributes:
        name: what the user called it.
        config: its settings.
        graphdef: the decoder without its weights (static, hashable).
        params: the weights, a pytree; `nnx.merge(graphdef, params)` is the module.
        tokenizer: text to ids and back; None for a model without text (random weights).
        stop_ids: ids that end a text (from generation_config.json and config.json).
        mesh: the devices that the weights are spread over; None for one device.
        implementation: of what stands around the products, where a kernel takes it.
        programs: compiled decoding programs, by what tells them apart; filled as they are needed.
    """

    name: str
    config: ModelConfig
    graphdef: nnx.GraphDef
    params: nnx.State
    tokenizer: TextTokenizer | None
    stop_ids: tuple[int, ...]
    mesh: Mesh | None = None
    implementation: Implementation = "xla"
    programs: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of the weights and activations."""
        return jax.tree.leaves(self.params)[0].dtype


def load(
    name: str | Path,
    *,
    dtype: str | None = None,
    mesh: Mesh | None = None,
    tensor_parallel: int = 1,
    implementation: Implementation | None = None,
) -> Model:
    """Load a model by path, bundled name or Hugging Face id.

    Args:
        name: a Hugging Face folder, a GGUF file, a converted folder, a bundled name, or an id, which is downloaded.
        dtype: of weights and activations, "bfloat16" or "float32"; by default bfloat16, on a CPU float32.
        mesh: the devices to spread the weights over.
        tensor_parallel: in place of a mesh, how many devices to split every layer over.
        implementation: of what stands around the matrix products: "xla" (plain JAX, everywhere) or "triton" (Pallas
            kernels, on one GPU); by default the fastest that was measured. What a kernel does not take (float32, other
            head sizes) runs in plain JAX either way.

    Raises:
        InputError: there is no such model or implementation, it is damaged or not supported, or it can't be split as
            asked.
    """
    dtype = dtype or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    checkpoint = open_checkpoint(resolve(str(name)))
    config = parse_config(checkpoint.config, checkpoint.config_location)
    stop_ids = read_stop_ids(checkpoint.generation_config, config)
    files = checkpoint.text_files
    tokenizer = TextTokenizer.from_files(files, str(checkpoint.path)) if files else None
    if mesh is not None and tensor_parallel != 1:
        raise InputError("give either a mesh or tensor_parallel, not both")
    if tensor_parallel != 1:
        mesh = make_mesh(data=1, tensor=tensor_parallel)
    devices = 1 if mesh is None else mesh.size
    if implementation is not None:
        _check_runs(implementation, devices)
    implementation = implementation or default_implementation(devices)
    graphdef, abstract = abstract_decoder(config, dtype, mesh, implementation)
    params = read_params(checkpoint, config, abstract)
    return Model(str(name), config, graphdef, params, tokenizer, stop_ids, mesh, implementation)


def random_model(
    config: ModelConfig,
    *,
    dtype: str,
    mesh: Mesh | None = None,
    seed: int = 0,
    implementation: Implementation | None = None,
) -> Model:
    """A model with initial weights, made on its devices: for tests and for measuring speed.

    Args:
        config: its shape.
        dtype: of weights and activations.
        mesh: the devices to spread the weights over.
        seed: of the weights.
        implementation: of what stands around the products; by default the fastest on these devices.

    Raises:
        InputError: the dtype isn't supported, or the model can't be split over the mesh.
    """
    implementation = implementation or default_implementation(1 if mesh is None else mesh.size)
    graphdef, abstract = abstract_decoder(config, dtype, mesh, implementation)
    # Not under jit: one program that draws every layer's weights takes minutes to compile.
    params = nnx.state(Decoder(config, dtype=dtype, rngs=nnx.Rngs(seed)))
    if mesh is not None:
        params = jax.tree.map(lambda array, leaf: jax.device_put(array, leaf.sharding), params, abstract)
    return Model(f"random {config.family}", config, graphdef, params, None, config.eos_token_ids, mesh, implementation)


def abstract_decoder(
    config: ModelConfig, dtype: str, mesh: Mesh | None, implementation: Implementation | None = None
) -> tuple[nnx.GraphDef, nnx.State]:
    """The decoder without weights, and its state with a `jax.ShapeDtypeStruct` for every parameter.

    `implementation` is by default the fastest on these devices.

    Raises:
        InputError: the dtype isn't supported, or the model can't be split over the mesh.
    """
    check_dtype(dtype)
    implementation = implementation or default_implementation(1 if mesh is None else mesh.size)
    graphdef, abstract = nnx.split(
        nnx.eval_shape(lambda: Decoder(config, dtype=dtype, rngs=OneKey(), implementation=implementation))
    )
    if mesh is None:
        return graphdef, abstract
    check_parallel(config, mesh)
    return graphdef, shard_abstract(abstract, mesh)


def read_params(checkpoint: Checkpoint, config: ModelConfig, abstract: nnx.State) -> nnx.State:
    """The weights of an opened model, placed as `abstract` says.

    Raises:
        InputError: they are damaged or don't fit the config.
    """
    if checkpoint.tensors is None:
        return restore(checkpoint.path, abstract)
    return load_parameters(checkpoint.tensors, config, abstract)


def check_dtype(dtype: str) -> None:
    """Refuse what weights can't be loaded in.

    Raises:
        InputError: it is none of `DTYPES`.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")


def _check_runs(implementation: str, devices: int) -> None:
    if implementation not in IMPLEMENTATIONS:
        raise InputError(f"implementation {implementation!r} is none of {', '.join(IMPLEMENTATIONS)}")
    if implementation == "triton" and default_implementation(devices) != "triton":
        raise InputError('implementation "triton" runs on one GPU alone: leave it out, or give "xla"')


class OneKey(nnx.Rngs):
    """Keys where only shapes are wanted: `nnx.Rngs` counts its keys, which takes layers squared while tracing."""

    def __init__(self) -> None:
        """Keep nothing: every key is the same."""

    def params(self) -> jax.Array:
        """A key."""
        return jax.random.key(0)
