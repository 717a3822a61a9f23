"""Times of attention in different tiles, and of the products of a layer at different row counts, of one geometry."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, NamedTuple

import jax

from bench.product_calls import drawn_weights, repeated_product
from bench.products import products_of
from bench.repeated import Repeated, lower, time_call
from bench.section import failure
from bench.tile_calls import candidates, repeated_attention
from pallas_kernels.triton import launch
from pallas_kernels.triton.attention import Tiles, default_tiles
from pallas_kernels.tuned_data import AttentionShape
from specdiff_jax.config import ModelConfig
from specdiff_jax.decode.programs import CUBLAS
from specdiff_jax.geometries import geometry

TUNED_PRODUCTS = ("qkv", "gate_up", "down")
"""Those of computed rows alone: the output product is of all rows."""


class Compiling(NamedTuple):
    """A call and its loop, which is being compiled."""

    work: Repeated
    program: Future[jax.stages.Compiled]


def measure(
    name: str,
    shapes: Sequence[Sequence[int]],
    counts: Sequence[int],
    cache_tokens: int,
    steps: int,
    repeats: int,
) -> dict[str, Any]:
    """Time every candidate, in bfloat16 and with random weights.

    Args:
        name: of the geometry.
        shapes: of attention, as `AttentionShape`.
        counts: of rows.
        cache_tokens: in the cache.
        steps: that are timed in one go.
        repeats: how often.

    Returns:
        for every shape a list of tiles with the seconds that one launch takes, or the error; the heuristic's stand
        first. For every row count the seconds that the products of a layer take together.

    Raises:
        RuntimeError: there is no GPU.
        Exception: whatever the heuristic's tiles or a product fail with.
    """
    if jax.default_backend() != "gpu" and not launch.INTERPRET:
        raise RuntimeError("jax finds no GPU")
    config = geometry(name)
    with ThreadPoolExecutor() as pool:  # which waits for all, so that nothing compiles while something is timed
        tried = [
            [(tiles, _compiling(pool, repeated_attention(shape, cache_tokens, tiles))) for tiles in _tiles_of(shape)]
            for shape in (AttentionShape(*sizes) for sizes in shapes)
        ]
        products = _products(pool, config, counts)
    return {
        "attention": [
            [_tiles_timed(*each, steps, repeats, may_fail=index > 0) for index, each in enumerate(calls)]
            for calls in tried
        ],
        "layer": [sum(_seconds(call, steps, repeats) for call in calls) for calls in products],
    }


def _tiles_of(shape: AttentionShape) -> list[Tiles]:
    """What the heuristic chooses, then the others."""
    heuristic = default_tiles(shape.branches, shape.kv_heads, shape.slots, shape.group)
    return [heuristic, *(tiles for tiles in candidates(shape) if tiles != heuristic)]


def _products(pool: ThreadPoolExecutor, config: ModelConfig, counts: Sequence[int]) -> list[tuple[Compiling, ...]]:
    """For every row count the products that its rows go through."""
    by_product = []
    for product in products_of(config):
        if product.name in TUNED_PRODUCTS:
            weights = drawn_weights(product, "bfloat16")
            by_product.append([_compiling(pool, repeated_product(product, weights, count)) for count in counts])
    return list(zip(*by_product, strict=True))


def _compiling(pool: ThreadPoolExecutor, work: Repeated) -> Compiling:
    return Compiling(work, pool.submit(_compiled, work))


def _compiled(work: Repeated) -> jax.stages.Compiled:
    """As programs that verify drafts are."""
    return lower(work).compile(CUBLAS)


def _tiles_timed(tiles: Tiles, call: Compiling, steps: int, repeats: int, *, may_fail: bool) -> dict[str, Any]:
    """Their time, or, where they may fail, why they did."""
    try:
        return {"tiles": asdict(tiles), "seconds": _seconds(call, steps, repeats)}
    except Exception as error:
        if not may_fail:
            raise
        traceback.print_exc()
        return {"tiles": asdict(tiles), **failure(error)}


def _seconds(call: Compiling, steps: int, repeats: int) -> float:
    return time_call(call.work, call.program.result(), steps=steps, repeats=repeats).seconds
