"""The kernels compile for CUDA at full size, and run where a mesh has a data axis."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import pytest
import sanitizer
from jax.sharding import AbstractMesh
from workers import run_worker

from pallas_kernels.head_norm import HeadNorm
from pallas_kernels.triton import attention, feed_forward, likeliest, prefix_attention, projection, rows
from pallas_kernels.triton.softmax import State

ROWS, HIDDEN, PLACES, KV_HEADS, HEAD_DIM, CAPACITY = 288, 3072, 144, 8, 128, 544


def half(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def single(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def whole(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def heads(group: int, places: int) -> jax.ShapeDtypeStruct:
    return half(places, KV_HEADS, group + 2, HEAD_DIM)


def cached(branches: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    """What attention reads beside the rows."""
    cache = half(1, KV_HEADS, CAPACITY, HEAD_DIM)
    return cache, cache, whole(1), whole(1), single(1, 32), whole(1, branches, 32)


STREAM, ANGLES = half(ROWS, HIDDEN), (single(1, 32, HEAD_DIM // 2), single(1, 32, HEAD_DIM // 2))
append = partial(attention.branch_attention, append=True)
parts = single(3, PLACES, KV_HEADS, 4)
KERNELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "plan": (rows.plan_rows, (single(ROWS), whole(ROWS), single(), whole(ROWS))),
    "norm": (projection.normed_rows, (STREAM, None, half(HIDDEN), 1e-6, None, None, ROWS)),
    "sum, gather and norm": (
        projection.normed_rows,
        (STREAM, STREAM, half(HIDDEN), 1e-6, whole(ROWS), whole(1), PLACES),
    ),
    "rotary": (projection.rotated_heads, (heads(4, ROWS), None, None, None, *ANGLES, 9)),
    "bias and rotary of places": (
        projection.rotated_heads,
        (heads(7, PLACES), half(KV_HEADS, 9, HEAD_DIM), whole(ROWS), whole(1), *ANGLES, 9),
    ),
    "norm of heads and rotary": (
        projection.rotated_heads,
        (heads(4, ROWS), None, None, None, *ANGLES, 9, HeadNorm(half(HEAD_DIM), half(HEAD_DIM), 1e-6)),
    ),
    "attention": (attention.branch_attention, (heads(4, PLACES), whole(1, 9, 32), *cached(9))),
    "attention, group of 6": (attention.branch_attention, (heads(6, PLACES), whole(1, 9, 32), *cached(9))),
    "attention of all rows, group of 7": (attention.branch_attention, (heads(7, ROWS), None, *cached(9))),
    "attention that appends": (append, (heads(4, 32), None, *cached(1))),
    "attention to the cache": (
        prefix_attention.prefix_attention,
        (heads(6, PLACES), whole(ROWS), whole(1), *cached(9)[:5], 9),
    ),
    "attention behind the cache": (
        attention.branch_attention,
        (heads(4, PLACES), whole(1, 9, 32), *cached(9), State(parts, parts, single(3, PLACES, KV_HEADS, 4, HEAD_DIM))),
    ),
    "likeliest": (likeliest.likeliest, (single(ROWS, 131072), 100, 2)),
    "likeliest of a vocabulary of odd size": (likeliest.likeliest, (single(32, 151935), -1, 1)),
    "sum": (feed_forward.add_through, (STREAM, STREAM, STREAM, None, None)),
    "sum and gate": (feed_forward.add_through, (STREAM, STREAM, half(PLACES, HIDDEN), whole(ROWS), whole(ROWS))),
}


@pytest.mark.parametrize("name", KERNELS)
def test_lowers_for_cuda(name: str) -> None:
    kernel, arguments = KERNELS[name]
    context = contextlib.nullcontext()
    if jax.__version_info__ >= (0, 11):  # from there on, Pallas asks the mesh which GPU it compiles for
        from jax.sharding import AbstractDevice, use_abstract_mesh

        context = use_abstract_mesh(AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", None, "cuda")))
    leaves, tree = jax.tree.flatten(arguments)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.ShapeDtypeStruct)]

    def call(*given: jax.Array) -> Any:
        left = iter(given)
        filled = [next(left) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf for leaf in leaves]
        return kernel(*jax.tree.unflatten(tree, filled))

    with context:
        lowered = jax.jit(call).trace(*arrays).lower(lowering_platforms=("cuda",))
    text = lowered.as_text()
    assert "triton" in text
    for launched in re.findall(r'name = "(\w+)"', text):
        assert any(part in launched for part in sanitizer.KERNELS), f"compute-sanitizer would not look at {launched}"


def test_supported_shapes() -> None:
    assert attention.supports(7, 128, "bfloat16")
    assert attention.supports(16, 32, jnp.bfloat16)
    assert not attention.supports(4, 128, jnp.float32)
    assert not attention.supports(4, 96, jnp.bfloat16)
    assert not attention.supports(17, 128, jnp.bfloat16)


@pytest.mark.parametrize(
    "platform", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_a_mesh_with_a_data_axis(platform: Literal["cpu", "cuda"]) -> None:
    """Every device runs the kernels on its own texts, and finds what one device finds with all of them.

    The largest numbers are below 16, whose bfloat16 neighbours stand 1/16 apart; another row's are whole numbers away.
    """
    if platform == "cuda" and len(jax.devices()) < 2:
        pytest.skip("needs two GPUs")
    apart = run_worker(Path(__file__).with_name("sharded_worker.py"), devices=2, platform=platform)
    assert len(apart) == 9
    assert max(apart.values()) <= 1 / 16, apart


def test_a_machine_without_compute_sanitizer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert sanitizer.main() == 2
    assert capsys.readouterr().err == "compute-sanitizer is not on PATH: add the folder bin of the CUDA toolkit\n"
