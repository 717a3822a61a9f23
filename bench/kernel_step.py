"""Times of kernel families through XLA and through our kernels, and of matrix products through XLA."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax

from bench.kernels import absent, key_of, path_of, timed
from bench.product_calls import drawn_weights, repeated_product
from bench.products import products_of
from bench.repeated import Repeated, lower, time_call
from bench.row_kernels import LayerRun, row_kernels
from bench.section import failure
from pallas_kernels.implementation import Implementation
from pallas_kernels.triton import launch
from specdiff_jax.config import ModelConfig
from specdiff_jax.geometries import geometry


class Piece(NamedTuple):
    """One of the things to measure.

    Attributes:
        key: under which it is kept.
        implementation: that runs it.
        work: the call, or why it can't run here.
        weight_bytes: that the call reads, if any; of logits where it reads those.
    """

    key: str
    implementation: Implementation
    work: Repeated | str
    weight_bytes: int | None = None


def measure(
    name: str,
    dtype: str,
    counts: Sequence[int],
    implementations: Sequence[Implementation],
    rows: int,
    branches: int,
    cache_tokens: int,
    steps: int,
    repeats: int,
) -> dict[str, Any]:
    """Time each kernel family and each matrix product of a geometry with random weights.

    Args:
        name: of the geometry.
        dtype: of weights and activations.
        counts: computed rows; as many as a branch has are those of a forward of main alone.
        implementations: of the families; "xla" measures the products, too.
        rows: of a branch.
        branches: drafts beside main.
        cache_tokens: in the cache.
        steps: that are timed in one go.
        repeats: how often.

    Returns:
        by `key_of` seconds and spread of one call, what ran, and the bytes of weights that it reads; or an error.
    """
    config = geometry(name)
    pieces: list[Piece] = []
    for implementation in implementations:
        for count in counts:
            alone = path_of(count, rows, branches) == "vanilla"
            run = LayerRun(config, dtype, 1 if alone else 1 + branches, rows, count, cache_tokens, implementation)
            pieces += _families(run)
    if "xla" in implementations:
        pieces += _products(config, dtype, counts)
    with ThreadPoolExecutor() as pool:  # which waits for all, so that nothing compiles while something is timed
        programs = [None if isinstance(piece.work, str) else pool.submit(_compiled, piece.work) for piece in pieces]
    return {
        piece.key: _measured(piece, program, steps, repeats) for piece, program in zip(pieces, programs, strict=True)
    }


def _families(run: LayerRun) -> Iterator[Piece]:
    kernels_run = jax.default_backend() == "gpu" or launch.INTERPRET
    for kernel, repeated in row_kernels(run):
        work: Repeated | str = repeated or "the kernel does not take the shapes"
        if run.implementation == "triton" and not kernels_run:
            work = "kernels need a GPU"
        size = run.logit_bytes if kernel == "likeliest" else None
        yield Piece(key_of(kernel, run.implementation, run.count), run.implementation, work, size)


def _products(config: ModelConfig, dtype: str, counts: Sequence[int]) -> Iterator[Piece]:
    for product in products_of(config):
        weights = drawn_weights(product, dtype)
        for count in counts:
            size = product.weight_bytes(weights[0].dtype.itemsize)
            yield Piece(key_of(product.name, "xla", count), "xla", repeated_product(product, weights, count), size)


def _compiled(work: Repeated) -> jax.stages.Compiled:
    return lower(work).compile()


def _measured(piece: Piece, program: Future[jax.stages.Compiled] | None, steps: int, repeats: int) -> dict[str, Any]:
    if isinstance(piece.work, str) or program is None:
        return absent(str(piece.work))
    try:
        timing = time_call(piece.work, program.result(), steps=steps, repeats=repeats)
    except Exception as error:
        traceback.print_exc()
        return failure(error)
    return timed(timing, piece.implementation, piece.weight_bytes)
