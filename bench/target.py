"""The models that are measured, with a cache in the middle of a text, and the bytes that a step has to read."""

from __future__ import annotations

import jax
from flax import nnx

from pallas_kernels.implementation import Implementation
from specdiff_jax.config import ModelConfig
from specdiff_jax.geometries import geometry
from specdiff_jax.loading import Model, load, random_model
from specdiff_jax.model import KVCache, empty_cache
from specdiff_jax.parallel import cache_sharding, make_mesh


def open_target(name: str, *, random: bool, dtype: str, devices: int) -> Model:
    """A geometry of that name with random weights, or a model of that name with its own, over so many devices."""
    mesh = make_mesh(data=1, tensor=devices) if devices > 1 else None
    return random_model(geometry(name), dtype=dtype, mesh=mesh) if random else load(name, dtype=dtype, mesh=mesh)


def implementation(model: Model) -> Implementation:
    """What runs a decode step's attention."""
    decoder = nnx.merge(model.graphdef, model.params)
    return "triton" if decoder.layers[0].attention.decode_kernel else "xla"


def weight_bytes(model: Model, rows: int) -> int:
    """Bytes of weights that one device reads in a forward of `rows` tokens.

    That is all that it holds, but no embedding table that is no head, and of the experts those that are expected to be
    chosen where each token takes any of them with equal chance.
    """
    leaves = jax.tree.leaves(model.params)
    total = sum(map(_local_bytes, leaves))
    if not model.config.tie_embeddings:
        total -= _embedding_bytes(model.params)
    if model.config.moe is not None:
        experts = sum(_local_bytes(leaf) for leaf in leaves if leaf.ndim == 3)  # (expert, in, out): no other has three
        idle = (1 - model.config.moe.experts_per_token / model.config.moe.num_experts) ** rows
        total -= round(experts * idle)
    return total


def head_bytes(model: Model) -> int:
    """Bytes of the output head that one device reads."""
    return sum(map(_local_bytes, jax.tree.leaves(model.params["embedding" if model.config.tie_embeddings else "head"])))


def _embedding_bytes(params: nnx.State) -> int:
    return sum(map(_local_bytes, jax.tree.leaves(params["embedding"])))


def _local_bytes(array: jax.Array) -> int:
    return array.addressable_shards[0].data.nbytes


def cache_bytes(config: ModelConfig, batch: int, tokens: int, itemsize: int, devices: int) -> int:
    """Bytes of keys and values that one device reads in a forward of `batch` rows with so many tokens each."""
    return 2 * config.num_layers * batch * tokens * config.num_kv_heads * config.head_dim * itemsize // devices


def filled_cache(model: Model, lengths: jax.Array, capacity: int) -> KVCache:
    """A cache of random keys and values: zeros could run faster than what is real."""
    sharding = None if model.mesh is None else cache_sharding(model.mesh)
    shapes = jax.eval_shape(lambda: empty_cache(model.config, lengths.size, capacity, model.dtype))
    layer = shapes.keys[0]
    draw = jax.jit(lambda key: jax.random.normal(key, layer.shape, layer.dtype), out_shardings=sharding)
    random_keys = jax.random.split(jax.random.key(1), 2 * model.config.num_layers)
    buffers = [draw(key) for key in random_keys]
    return KVCache(tuple(buffers[::2]), tuple(buffers[1::2]), lengths)
