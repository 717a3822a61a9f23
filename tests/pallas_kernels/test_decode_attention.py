"""The decode kernel against a plain float64 computation of the same step, in interpret mode and on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from pallas_kernels.decode_attention import HeadNorm, decode_attention, split_count, supports

CASES = [
    # batch, kv_heads, group, head_dim, capacity, norm
    (2, 2, 3, 32, 96, False),
    (2, 2, 4, 32, 320, True),
    (3, 1, 7, 64, 200, True),
    (1, 2, 1, 32, 64, False),
]


def inputs(case: Sequence[int], dtype: jnp.dtype, lengths: Sequence[int] | None = None):
    batch, kv_heads, group, size, capacity, norm = case
    rng = np.random.default_rng(sum(case))

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), dtype)

    length = np.asarray(lengths if lengths is not None else rng.integers(0, capacity - 1, batch), np.int32)
    angles = length[:, None] * 1e4 ** (-np.arange(0, size, 2) / size)
    arrays = (
        draw(batch, kv_heads, group + 2, size),
        draw(batch, kv_heads, capacity, size),
        draw(batch, kv_heads, capacity, size),
        jnp.asarray(length),
        jnp.asarray(np.cos(angles), jnp.float32),
        jnp.asarray(np.sin(angles), jnp.float32),
        jnp.asarray(size**-0.5 * rng.uniform(0.5, 1.5, batch), jnp.float32),
    )
    head_norm = HeadNorm(1 + 0.1 * draw(size), 1 + 0.1 * draw(size), 1e-6) if norm else None
    return arrays, head_norm


def oracle(arrays, norm: HeadNorm | None):
    """The same step by loops over rows and heads, in float64."""
    projected, keys, values, lengths, cos, sin, scale = (np.asarray(a, np.float64) for a in arrays)
    batch, kv_heads, heads, size = projected.shape
    group, half = heads - 2, size // 2
    mixed = np.zeros((batch, kv_heads, group, size))

    def prepare(x: np.ndarray, weight: jax.Array | None, row: int) -> np.ndarray:
        if weight is not None:
            x = x / np.sqrt((x * x).mean() + norm.eps) * np.asarray(weight, np.float64)
        a, b = x[:half], x[half:]
        return np.concatenate([a * cos[row] - b * sin[row], b * cos[row] + a * sin[row]])

    for row in range(batch):
        end = int(lengths[row])
        for head in range(kv_heads):
            keys[row, head, end] = prepare(projected[row, head, group], norm and norm.key, row)
            values[row, head, end] = projected[row, head, group + 1]
            for g in range(group):
                query = prepare(projected[row, head, g], norm and norm.query, row)
                scores = keys[row, head, : end + 1] @ query * scale[row]
                weights = np.exp(scores - scores.max())
                mixed[row, head, g] = weights @ values[row, head, : end + 1] / weights.sum()
    return mixed, keys, values


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_interpreted_kernel_equals_oracle(case, splits):
    arrays, norm = inputs(case, jnp.float32)
    expected = oracle(arrays, norm)
    actual = decode_attention(*arrays, norm, splits=splits, interpret=True)
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128])
def test_lengths_at_tile_borders(length):
    case = (1, 1, 2, 32, 192, False)
    arrays, norm = inputs(case, jnp.float32, [length])
    for splits in (1, 2, 4):
        actual = decode_attention(*arrays, norm, splits=splits, interpret=True)
        np.testing.assert_allclose(actual[0], oracle(arrays, norm)[0], atol=2e-6)


def test_entries_past_the_length_are_never_read():
    arrays, norm = inputs((2, 1, 2, 32, 192, False), jnp.float32, [70, 5])
    clean = decode_attention(*arrays, norm, splits=2, interpret=True)[0]
    past = np.arange(192)[None, None, :, None] >= np.asarray(arrays[3])[:, None, None, None]
    poisoned = list(arrays)
    poisoned[1], poisoned[2] = (jnp.where(past, jnp.nan, cache) for cache in arrays[1:3])
    np.testing.assert_array_equal(clean, decode_attention(*poisoned, norm, splits=2, interpret=True)[0])


def test_split_count_fills_the_gpu_and_leaves_each_program_two_tiles():
    assert split_count(8, 640) == 5
    assert split_count(8, 8192) == 16
    assert split_count(256, 640) == 1
    assert split_count(8, 32) == 1


def test_supported_shapes():
    assert supports(4, 128, jnp.bfloat16)
    assert supports(4, 128, "bfloat16")
    assert not supports(4, 128, jnp.float32)
    assert not supports(4, 96, jnp.bfloat16)
    assert not supports(16, 128, jnp.bfloat16)


@pytest.mark.parametrize("splits", [1, 4])
def test_lowers_for_cuda(splits):
    arrays, norm = inputs((2, 2, 4, 128, 320, True), jnp.bfloat16)
    context = contextlib.nullcontext()
    if jax.__version_info__ >= (0, 11):  # from there on, Pallas asks the mesh which GPU it compiles for
        from jax.sharding import AbstractDevice, use_abstract_mesh

        context = use_abstract_mesh(AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", None, "cuda")))
    with context:
        traced = jax.jit(lambda *a: decode_attention(*a, norm, splits=splits)).trace(*arrays)
        assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(
    "case", [(4, 8, 4, 128, 640, True), (1, 3, 3, 64, 2048, False), (32, 8, 4, 128, 640, True)], ids=str
)
def test_gpu_kernel_equals_oracle(case, splits):
    arrays, norm = inputs(case, jnp.bfloat16)
    expected = oracle(arrays, norm)
    actual = jax.jit(lambda *a: decode_attention(*a, norm, splits=splits))(*arrays)
    for got, want in zip(actual, expected, strict=True):
        error = np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)
        assert error < 5e-3
