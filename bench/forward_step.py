"""Time of one forward of a block of rows against a cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bench.device_profile import device_shares
from bench.measure import seconds_of, time_step
from bench.target import cache_bytes, filled_cache, weight_bytes
from pallas_kernels.implementation import Implementation
from specdiff_jax.block_spec import BlockSpec, block_spec
from specdiff_jax.decode.block_diffusion import rows_of_slots
from specdiff_jax.decode.folding import capacities_for, capacities_of
from specdiff_jax.decode.programs import branch_implementation, compile_once, verification_options
from specdiff_jax.decode.verdict import judge_greedily
from specdiff_jax.geometries import geometry
from specdiff_jax.loading import random_model
from specdiff_jax.model import Decoder, KVCache
from specdiff_jax.model.branches import Folding

RANKS = 2
"""Tokens of a slot that a typical draft graph can name."""


def forwards(model: Decoder, cache: KVCache, tokens: jax.Array, count: jax.Array) -> tuple[KVCache, jax.Array]:
    """`count` forwards of the same block in one loop: rows see the cache and each other, and nothing is committed.

    Each forward reads the tokens that the one before chose, as denoising steps do, so none can be shared or left out.
    """
    visible = jnp.full(tokens.shape, tokens.shape[1])

    def one(_: jax.Array, carry: tuple[KVCache, jax.Array]) -> tuple[KVCache, jax.Array]:
        cache, tokens = carry
        output = model.block(tokens, cache, visible)
        assert output.cache is not None
        return output.cache, jnp.argmax(model.logits(output.hidden), axis=-1).astype(tokens.dtype)

    return jax.lax.fori_loop(0, count, one, (cache, tokens))


def verifications(
    model: Decoder,
    cache: KVCache,
    tokens: jax.Array,
    count: jax.Array,
    folding: Folding | None,
    spec: BlockSpec,
) -> tuple[KVCache, jax.Array]:
    """`count` forwards of several branches (1, branches, rows), with what verification takes from each."""
    visible = jnp.full(tokens.shape, tokens.shape[2])

    def one(_: jax.Array, tokens: jax.Array) -> jax.Array:
        output = model.branches(tokens, cache, visible, folding)
        # One value of each array is read, so that the compiler drops none: a commit keeps those of a branch.
        kept = sum(array[0, 0, 0, 0, 0] for array in (*output.keys, *output.values))
        chosen = judge_greedily(model, rows_of_slots(output.hidden, spec), spec, RANKS).tokens
        return jnp.where(jnp.isnan(kept), 0, chosen).astype(tokens.dtype)

    return cache, jax.lax.fori_loop(0, count, one, tokens)


def prescribed(
    layers: int, branches: int, slots: int, fold_ratio: float, buckets: int, *, ahead: bool = False
) -> Folding:
    """A folding in which every layer folds a share of the drafts' rows, of which chance decides.

    Args:
        layers: of the model.
        branches: main and its drafts, which fold into main.
        slots: of a branch.
        fold_ratio: the share.
        buckets: how many row counts a layer is compiled for.
        ahead: whether a forward takes one row count for all layers, as decoding with kernels does, which foresees it;
            here it is known.
    """
    rows = (branches - 1) * slots
    computed = jnp.arange(rows) < rows - round(fold_ratio * rows)
    masks = (jax.random.permutation(key, computed) for key in jax.random.split(jax.random.key(3), layers))
    nobody = jnp.zeros((1, branches), bool)
    return Folding(
        parents=jnp.zeros((1, branches), jnp.int32),
        forced=tuple(jnp.pad(mask.reshape(1, -1, slots), ((0, 0), (1, 0), (0, 0))) for mask in masks),
        whole=nobody.at[:, 0].set(True),
        idle=nobody,
        delta=jnp.float32(jnp.inf),
        capacities=capacities_of(branches * slots, buckets),
        expected=jnp.float32(slots + jnp.sum(computed)) if ahead else None,
    )


def measure(
    name: str,
    dtype: str,
    rows: int,
    branches: int,
    cache_tokens: int,
    steps: int,
    repeats: int,
    fold_ratio: float | None = None,
    buckets: int = 1,
    implementation: Implementation | None = None,
    profile: bool = False,
) -> dict[str, Any]:
    """Time a forward of a geometry with random weights, logits of all rows included.

    Args:
        name: of the geometry.
        dtype: of weights and activations.
        rows: of the block.
        branches: drafts beside it, which are verified in the same forward; 0 is a plain forward.
        cache_tokens: in the cache.
        steps: that are timed in one go.
        repeats: how often.
        fold_ratio: the share of the drafts' rows that every layer folds; None verifies densely.
        buckets: how many row counts a layer is compiled for.
        implementation: of what stands around the products; by default the fastest here.
        profile: whether to trace the loop once more, on a GPU.

    Returns:
        what ran ("xla" or "pallas"), seconds and spread of a forward, the bytes of weights and of cache that it reads,
        and by kernel family the shares of the device's time (None without a profile).
    """
    model = random_model(geometry(name), dtype=dtype, implementation=implementation)
    cache = filled_cache(model, jnp.full((1,), cache_tokens, jnp.int32), cache_tokens + rows)
    tokens = jax.random.randint(jax.random.key(2), (1, rows), 0, model.config.vocab_size, jnp.int32)
    step: Callable[..., tuple[KVCache, jax.Array]] = forwards
    given: tuple[Folding | None, ...] = ()
    if branches:
        tokens = jnp.tile(tokens[:, None], (1, 1 + branches, 1))
        step = partial(verifications, spec=block_spec(model.config))
        folds = None
        if fold_ratio is not None:
            ahead = branch_implementation(model) == "triton"
            folds = prescribed(model.config.num_layers, 1 + branches, rows, fold_ratio, buckets, ahead=ahead)
            capacities = capacities_for(model, 1, (1 + branches) * rows, buckets)
            folds = dataclasses.replace(folds, capacities=capacities)
        given = (folds,)
    options = verification_options(model) if branches else None
    program = compile_once(
        model, "bench forwards", step, cache, tokens, jnp.int32(0), *given, donate=(0,), options=options
    )

    def elapsed(count: int) -> float:
        nonlocal cache
        seconds, (cache, _) = seconds_of(lambda: program(model.params, cache, tokens, jnp.int32(count), *given))
        return seconds

    timing = time_step(elapsed, steps=steps, repeats=repeats)
    traced = profile and jax.default_backend() == "gpu"
    return {
        "implementation": "pallas" if branch_implementation(model) == "triton" else "xla",
        "seconds": timing.seconds,
        "spread": timing.spread,
        "weight_bytes": weight_bytes(model, rows * (1 + branches)),
        "cache_bytes": cache_bytes(model.config, 1, cache_tokens, model.dtype.itemsize, 1),
        "shares": device_shares(lambda: elapsed(steps)) if traced else None,
    }
