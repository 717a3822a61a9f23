"""The device mesh, and how arrays are spread over it.

Axis `tensor` splits each layer, axis `data` splits the batch. The compiler puts in the communication, so the model
itself knows nothing of devices: one sum over `tensor` after attention and one after the feed-forward, as in Megatron-LM
(arXiv 1909.08053).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

from specdiff_jax.config import ModelConfig
from specdiff_jax.errors import InputError

# By the last part of a parameter's path and its number of axes. What isn't listed is replicated: norms, the router, and
# the biases that are added after a sum over devices.
#
# Experts are split by width like a dense feed-forward, not by expert: then every device has an equal part of the work
# whichever experts the tokens choose, and one sum per layer is enough. Splitting by expert would take gathers as well.
RULES: dict[tuple[str, int], P] = {
    ("embedding", 2): P("tensor", None),  # vocab, hidden
    ("head", 2): P("tensor", None),  # vocab, hidden
    ("qkv", 2): P("tensor", None),  # rows grouped by key/value head, hidden
    ("qkv_bias", 1): P("tensor"),
    ("out", 2): P(None, "tensor"),  # hidden, heads * head_dim
    ("gate_up", 2): P("tensor", None),  # rows in pairs of gate and up, hidden
    ("gate_up_bias", 1): P("tensor"),
    ("down", 2): P(None, "tensor"),  # hidden, width
    ("gate_up", 3): P(None, None, "tensor"),  # experts, hidden, columns in pairs of gate and up
    ("down", 3): P(None, "tensor", None),  # experts, width, hidden
}


def make_mesh(data: int, tensor: int, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of data * tensor devices.

    Args:
        data: parts of the batch.
        tensor: parts of each layer; neighbouring devices, since they talk the most.
        devices: the devices to take from, in order; all by default.

    Raises:
        InputError: a number is not positive, or there are too few devices.
    """
    if data < 1 or tensor < 1:
        raise InputError(f"a mesh needs positive sizes, not data={data} and tensor={tensor}")
    found = jax.devices() if devices is None else devices
    needed = data * tensor
    if needed > len(found):
        raise InputError(
            f"data={data} times tensor={tensor} takes {needed} devices, but there are {len(found)}: ask for fewer"
        )
    # Auto axes: with jax's default, Explicit ones, every contraction over a split axis would have to name its result's.
    return jax.make_mesh((data, tensor), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2, devices=found[:needed])


def check_parallel(config: ModelConfig, mesh: Mesh | AbstractMesh) -> None:
    """Whether the model can be split over the mesh's `tensor` axis.

    Raises:
        InputError: the axis doesn't divide what it splits; the message says which sizes would.
    """
    parts = mesh.shape["tensor"]
    sizes = {"key/value heads": config.num_kv_heads}
    sparse = () if config.moe is None else config.moe.sparse_layers
    if len(sparse) < config.num_layers:
        sizes["columns of the feed-forward"] = config.intermediate_size
    if config.moe is not None and sparse:
        sizes["columns of each expert"] = config.moe.intermediate_size
    undivided = [f"{size} {name}" for name, size in sizes.items() if size % parts]
    if undivided:
        fitting = [n for n in range(1, config.num_kv_heads + 1) if not any(size % n for size in sizes.values())]
        raise InputError(
            f"the model can't be split over {parts} devices, which don't divide its {' and '.join(undivided)}; "
            f"numbers that work: {', '.join(map(str, fitting))}"
        )


def param_sharding(path: str, shape: Sequence[int], mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Where a parameter lives.

    A parameter that can't be split evenly is replicated; after `check_parallel` only a vocabulary can be such a one.

    Args:
        path: its place in the model, with dots between the parts.
        shape: its size along each axis.
        mesh: the devices.
    """
    spec = RULES.get((path.rpartition(".")[2], len(shape)), P())
    uneven = any(size % mesh.shape[axis] for axis, size in zip(spec, shape, strict=False) if axis is not None)
    return NamedSharding(mesh, P() if uneven else spec)


def shard_abstract(abstract: nnx.State, mesh: Mesh) -> nnx.State:
    """The same state of `jax.ShapeDtypeStruct`s, each with its place on the mesh: what to load or initialise into."""

    def placed(path: tuple[Any, ...], variable: nnx.Variable) -> nnx.Variable:
        leaf = variable.get_value()
        sharding = param_sharding(".".join(map(str, path)), leaf.shape, mesh)
        return variable.replace(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding))

    return nnx.map_state(placed, abstract)


def place_abstract(abstract: nnx.State, sharding: Sharding) -> nnx.State:
    """The same state of `jax.ShapeDtypeStruct`s, all in one place."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), abstract)


def cache_sharding(mesh: Mesh) -> NamedSharding:
    """Where keys and values live: (batch, kv_heads, capacity, head_dim)."""
    return NamedSharding(mesh, P("data", "tensor", None, None))


def drafter_cache_sharding(mesh: Mesh) -> NamedSharding:
    """Where the keys and values of a drafter live, whose weights every device has whole."""
    return NamedSharding(mesh, P("data", None, None, None))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Where tokens, lengths and all else with one entry per batch row live."""
    return NamedSharding(mesh, P("data"))
