"""From a drafter's name to one that is ready to draft for its target, and back to a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from convert.checkpoint import Checkpoint, open_checkpoint
from convert.drafter_names import drafter_parts, load_drafter_parameters
from convert.hf_folder import Weights, save_parts
from convert.orbax_folder import restore
from convert.resolve import resolve
from pallas_kernels.implementation import Implementation
from specdiff_jax.drafter_config import DrafterConfig, check_pair
from specdiff_jax.drafter_config_file import config_json, parse_drafter_config
from specdiff_jax.loading import Model, OneKey, check_dtype
from specdiff_jax.model.drafter import BlockDrafter
from specdiff_jax.parallel import place_abstract


@dataclass(frozen=True, eq=False)
class Drafter:
    """A loaded drafter.

    Attributes:
        name: what the user called it.
        config: its settings.
        graphdef: the module (`specdiff_jax.model.drafter.BlockDrafter`) without its weights (static, hashable).
        params: the weights, a pytree; `nnx.merge(graphdef, params)` is the module.
    """

    name: str
    config: DrafterConfig
    graphdef: nnx.GraphDef
    params: nnx.State


def load_drafter(name: str | Path, target: Model) -> Drafter:
    """Load a drafter by path, bundled name or Hugging Face id.

    Args:
        name: a Hugging Face folder, a converted folder, a bundled name, or an id, which is downloaded.
        target: the model that it is to draft for. The weights take its dtype and the drafter its implementation; where
            it is spread over a mesh, each of the mesh's devices holds all of them.

    Raises:
        InputError: there is no such drafter, it is damaged or not supported, or it was made for another target.
    """
    checkpoint = open_checkpoint(resolve(str(name)))
    config = parse_drafter_config(checkpoint.config, checkpoint.config_location)
    check_pair(config, target.config, str(name), target.name)
    graphdef, abstract = abstract_drafter(config, str(target.dtype), target.implementation)
    if target.mesh is not None:
        abstract = place_abstract(abstract, NamedSharding(target.mesh, PartitionSpec()))
    return Drafter(str(name), config, graphdef, read_drafter_params(checkpoint, config, abstract))


def random_drafter(config: DrafterConfig, target: Model, *, seed: int = 0) -> Drafter:
    """A drafter with initial weights: for training, tests and measuring speed.

    Args:
        config: its settings.
        target: the model that it is to draft for; dtype and devices are as `load_drafter` has them.
        seed: of the weights.

    Raises:
        InputError: the settings don't fit the target.
    """
    name = "random drafter"
    check_pair(config, target.config, name, target.name)
    drafter = BlockDrafter(config, dtype=target.dtype, rngs=nnx.Rngs(seed), implementation=target.implementation)
    graphdef, params = nnx.split(drafter)
    if target.mesh is not None:
        params = jax.device_put(params, NamedSharding(target.mesh, PartitionSpec()))
    return Drafter(name, config, graphdef, params)


def abstract_drafter(
    config: DrafterConfig, dtype: str, implementation: Implementation = "xla"
) -> tuple[nnx.GraphDef, nnx.State]:
    """The drafter without weights, and its state with a `jax.ShapeDtypeStruct` for every parameter.

    Raises:
        InputError: the dtype isn't supported.
    """
    check_dtype(dtype)

    def build() -> BlockDrafter:
        return BlockDrafter(config, dtype=dtype, rngs=OneKey(), implementation=implementation)

    return nnx.split(nnx.eval_shape(build))


def read_drafter_params(checkpoint: Checkpoint, config: DrafterConfig, abstract: nnx.State) -> nnx.State:
    """The weights of an opened drafter, placed as `abstract` says.

    Raises:
        InputError: they are damaged or don't fit the config.
    """
    if checkpoint.tensors is None:
        return restore(checkpoint.path, abstract)
    return load_drafter_parameters(checkpoint.tensors, config, abstract)


def save_drafter(params: nnx.State, destination: Path, *, config: DrafterConfig, weights: Weights) -> None:
    """Write a drafter as a Hugging Face folder, in the layout of the published ones.

    Args:
        params: the drafter's state.
        destination: a folder that doesn't exist yet; it appears under its name only when it is whole.
        config: its settings.
        weights: how they are stored, as `convert.hf_folder.save` has it.

    Raises:
        InputError: the destination exists or can't be written, the layout has no words for some of the settings, or NaN
            or infinite weights are to be stored as int8.
    """
    table = drafter_parts(config)
    save_parts(params, table, destination, config_json(config), weights, generation_config={}, text_files={})
