"""Compiled programs of a model: compiled ahead of time, once for each shape, so that no timing holds a compilation."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax
from flax import nnx

from specdiff_jax.loading import Model


def compile_once(
    model: Model,
    key: Hashable,
    function: Callable[..., Any],
    *arguments: Any,
    donate: tuple[int, ...] = (),
    out_shardings: Any = None,
) -> Callable[..., Any]:
    """The executable of `function(module, *arguments)`, to be called as `(model.params, *arguments)`.

    Args:
        model: the target; it keeps its executables, so a second call with the same key compiles nothing.
        key: what tells this program apart: its name and every shape and static setting.
        function: takes the NNX module first.
        arguments: arrays, or their shapes.
        donate: which of `arguments` the program may overwrite.
        out_shardings: where the results live; decided by the compiler by default.
    """
    if key not in model.programs:

        def run(params: nnx.State, *rest: Any) -> Any:
            return function(nnx.merge(model.graphdef, params), *rest)

        donated = tuple(index + 1 for index in donate)
        jitted = jax.jit(run, donate_argnums=donated, out_shardings=out_shardings)
        model.programs[key] = jitted.lower(model.params, *arguments).compile()
    return model.programs[key]


def result_shapes(executable: Any) -> Any:
    """Shapes, dtypes and shardings of an executable's results, to compile the program that comes after it."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), executable.out_info
    )
