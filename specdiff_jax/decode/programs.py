"""Compiled programs of a model: compiled ahead of time, once for each shape, so that no timing holds a compilation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
from flax import nnx

from pallas_kernels.implementation import Implementation
from specdiff_jax.loading import Model

CUBLAS: dict[str, str | bool] = {"xla_gpu_enable_triton_gemm": False}
"""Compiler options that leave all products to cuBLAS.

XLA times its own split products against cuBLAS's while the weights are in the GPU's cache, and then chooses some that
are slower when they are not: on an H200 dense and folded verification take 3 and 6 % less without them.
"""


def compile_once(
    model: Model,
    key: Hashable,
    function: Callable[..., Any],
    *arguments: Any,
    donate: tuple[int, ...] = (),
    out_shardings: Any = None,
    options: Mapping[str, str | bool] | None = None,
) -> Callable[..., Any]:
    """The executable of `function(module, *arguments)`, to be called as `(model.params, *arguments)`.

    Args:
        model: the target; it keeps its executables, so a second call with the same key compiles nothing.
        key: what tells this program apart: its name and every shape and static setting.
        function: takes the NNX module first.
        arguments: arrays, or their shapes.
        donate: which of `arguments` the program may overwrite.
        out_shardings: where the results live; decided by the compiler by default.
        options: of the compiler.
    """
    if key not in model.programs:

        def run(params: nnx.State, *rest: Any) -> Any:
            return function(nnx.merge(model.graphdef, params), *rest)

        donated = tuple(index + 1 for index in donate)
        jitted = jax.jit(run, donate_argnums=donated, out_shardings=out_shardings)
        lowered = jitted.lower(model.params, *arguments)
        model.programs[key] = lowered.compile(dict(options) if options else None)
    return model.programs[key]


def branch_implementation(model: Model) -> Implementation:
    """What runs around the products in a forward of blocks and branches."""
    decoder = nnx.merge(model.graphdef, model.params)
    return "triton" if decoder.layers[0].attention.branch_kernels else "xla"


def verification_options(model: Model) -> dict[str, str | bool] | None:
    """The compiler's options for programs that verify drafts: `CUBLAS` where that runs through kernels."""
    return CUBLAS if branch_implementation(model) == "triton" else None


def result_shapes(executable: Any) -> Any:
    """Shapes, dtypes and shardings of an executable's results, to compile the program that comes after it."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), executable.out_info
    )
