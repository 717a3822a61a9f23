"""The decoder's parameters by name: dotted paths, the same in the name table and on disk."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from flax import nnx
from jax.tree_util import DictKey


def named(state: nnx.State) -> dict[str, jax.Array | jax.ShapeDtypeStruct]:
    """Every leaf of the state by its path, such as "layers.0.attention.qkv"."""
    leaves, _ = jax.tree.flatten_with_path(state)
    return {".".join(str(key.key) for key in path if isinstance(key, DictKey)): leaf for path, leaf in leaves}


def with_arrays(state: nnx.State, arrays: Mapping[str, jax.Array]) -> nnx.State:
    """The state with each leaf replaced by the array of its name."""
    return jax.tree.unflatten(jax.tree.structure(state), [arrays[name] for name in named(state)])
