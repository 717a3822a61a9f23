"""What `specdiff bench kernels` measures."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tiny_geometry import TINY

import bench.cublas
import bench.cublas_graph
import bench.kernel_step
import bench.products
import bench.repeated
import bench.row_kernels
import bench.run
from bench.environment import Environment
from bench.kernels import PRODUCTS, KernelBench, absent, key_of, path_of, sections
from bench.measure import Timing
from bench.products import Product, products_of
from bench.repeated import Repeated, lower, time_call, waiting
from bench.row_kernels import LayerRun, row_kernels
from bench.run import Settings, run_sections
from pallas_kernels.contraction import contract
from pallas_kernels.triton import launch
from specdiff_jax.errors import InputError
from specdiff_jax.geometries import geometry

SLOTS, DRAFTS = 4, 2
ENVIRONMENT = Environment("specdiff bench kernels", "h200", None, "0", "2026-01-01", "aaa")
FAMILIES = ("normed_rows", "branch_attention", "add_through", "likeliest")

READING = ("likeliest", *PRODUCTS)
"""What has a floor."""


@pytest.fixture
def small(monkeypatch) -> None:
    """A small shape under any name, in short loops of which only the ends are looked at."""
    for module in (bench.kernel_step, bench.cublas):
        monkeypatch.setattr(module, "geometry", lambda name: TINY)
    monkeypatch.setattr(bench.products, "CACHED_BYTES", 0)
    monkeypatch.setattr(bench.products, "STEP_BYTES", 0)
    monkeypatch.setattr(bench.row_kernels, "CALLS", 1)
    monkeypatch.setattr(bench.row_kernels, "ROUNDS", 1)
    for module in (bench.repeated, bench.cublas_graph):
        monkeypatch.setattr(module, "time_step", lambda elapsed, steps, repeats: Timing(elapsed(steps), 1.0))


def here(module: str, arguments: dict[str, Any], **_: Any) -> dict[str, Any]:
    """A measurement in this process."""
    return {"bytes_per_second": 1e9} if module == "bench.bandwidth" else import_module(module).measure(**arguments)


def plan(**asked: Any) -> list[dict[str, Any]]:
    settings = Settings(dtype="bfloat16", cache_tokens=6)
    return [section.known for section in sections(KernelBench(["nld-3b"], **asked), settings)]


def test_every_kernel_and_product_has_a_row():
    rows = plan(counts=[32, 134, 288])
    of = {
        implementation: [(row["rows"], row["kernel"]) for row in rows if row["implementation"] == implementation]
        for implementation in ("xla", "triton", "cublas")
    }
    families = [
        *((32, kernel) for kernel in FAMILIES),
        (134, "plan_rows"),
        *((count, kernel) for count in (134, 288) for kernel in FAMILIES),
    ]
    products = [(count, product) for count in (32, 134, 288) for product in PRODUCTS]
    assert of["triton"] == families
    assert of["cublas"] == products
    assert sorted(of["xla"]) == sorted(families + products)
    assert len(rows) == 2 * len(families) + 2 * len(products)
    settings = {row["rows"]: row["settings"] for row in rows if row["kernel"] == "add_through"}
    about = {count: (of["path"], of["branches"]) for count, of in settings.items()}
    assert about == {32: ("vanilla", 0), 134: ("folded", 8), 288: ("dense", 8)}


@pytest.mark.parametrize("count", [31, 289])
def test_counts_are_those_of_a_forward(count):
    with pytest.raises(InputError, match=rf"--count {count}: from 32 .* to 288"):
        path_of(count, 32, 8)


def test_a_model_without_blocks_is_refused():
    with pytest.raises(InputError, match="no diffusion model"):
        KernelBench(["qwen3-8b"]).check()


def test_a_library_is_measured_once_for_all_of_its_rows(monkeypatch, tmp_path):
    measured = {
        key_of("output", "xla", 32): {
            "seconds": 4e-6,
            "spread": 1.1,
            "implementation": "xla",
            "weight_bytes": 8_000_000,
        },
        key_of("normed_rows", "xla", 32): {
            "seconds": 2e-6,
            "spread": 1.0,
            "implementation": "xla",
            "weight_bytes": None,
        },
        key_of("output", "cublas", 32): absent("torch is not installed"),
        key_of("down", "cublas", 32): {"error": "no memory"},
    }
    calls = []

    def apart(module: str, arguments: dict[str, Any], **_: Any) -> dict[str, Any]:
        calls.append(module)
        return {"bytes_per_second": 4e12} if module == "bench.bandwidth" else measured

    monkeypatch.setattr(bench.run, "measure_apart", apart)
    asked = sections(KernelBench(["nld-3b"], [32], implementations=["xla", "cublas"]), Settings())
    wanted = [section for section in asked if key_of(*_names(section.known)) in measured]
    rows = run_sections("kernels", wanted, Settings(), ENVIRONMENT, tmp_path, time_limit=60, on_row=lambda row: None)
    assert calls == ["bench.bandwidth", "bench.kernel_step", "bench.cublas"]
    norm, product, absent_one, failed = rows
    assert (norm["microseconds"], norm["weight_floor_microseconds"], norm["ratio_to_floor"]) == (2.0, None, None)
    assert (product["microseconds"], product["weight_floor_microseconds"], product["ratio_to_floor"]) == (4.0, 2.0, 2.0)
    assert absent_one["microseconds"] is None
    assert absent_one["settings"]["implementation"] == "none: torch is not installed"
    assert "error" not in absent_one
    assert failed["error"] == "no memory"


def _names(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["kernel"], row["implementation"], row["rows"]


def test_products_are_those_of_the_geometry():
    shapes = {product.name: (product.outputs, product.inputs) for product in products_of(geometry("nld-3b"))}
    assert shapes == {
        "qkv": (6144, 3072),
        "output": (3072, 4096),
        "gate_up": (18432, 3072),
        "down": (3072, 9216),
        "head": (131072, 3072),
    }


@pytest.mark.parametrize("name", ["fdv2-1.5b", "nld-14b"])
def test_weights_come_from_memory(name):
    """Those that take turns fill the cache more than three times, and with one less they don't."""
    for product in products_of(geometry(name)):
        size, copies = product.weight_bytes(2), product.copies(2)
        assert copies * size > 180e6 >= (copies - 1) * size
        assert product.rounds(2) * copies * size >= 4e9


def test_a_loop_makes_every_call():
    def call(total: jax.Array, own: jax.Array) -> tuple[jax.Array, jax.Array]:
        return total + own, total * own

    repeated = Repeated(call, jnp.float32(1), [jnp.float32(2), jnp.float32(3)], rounds=2)
    total, results = lower(repeated).compile()(repeated.inputs, list(repeated.own), jnp.int32(3))
    assert total == 1 + 3 * 2 * (2 + 3)
    assert results == [26 * 2, 28 * 3]


def test_the_time_is_that_of_a_call(monkeypatch):
    repeated = Repeated(waiting(jnp.add), jnp.float32(1), [jnp.float32(2), jnp.float32(3)], rounds=5)
    monkeypatch.setattr(bench.repeated, "time_step", lambda elapsed, steps, repeats: Timing(20.0, 1.5))
    assert time_call(repeated, lower(repeated).compile(), steps=1, repeats=1) == Timing(2.0, 1.5)


def test_a_loop_multiplies_every_weight_and_copies_none():
    """Each product stays in the loop, though its operands never change, and none is merged with another."""
    rows, weights = jnp.ones((1, 8, 32)), [jnp.full((24, 32), float(index)) for index in range(3)]
    repeated = Repeated(waiting(lambda x, weight: contract("bsh,oh->bso", x, weight)), rows, weights, rounds=4)
    text = lower(repeated).compile().as_text()
    assert text.count(" dot(") == 3
    assert not [line for line in text.splitlines() if "f32[24,32]" in line and " copy(" in line]


def runs(implementation: Any, count: int) -> Iterator[tuple[str, Any]]:
    """Results of each family after one step."""
    branches = 1 if count == SLOTS else 1 + DRAFTS
    for kernel, repeated in row_kernels(LayerRun(TINY, "bfloat16", branches, SLOTS, count, 6, implementation)):
        assert repeated is not None
        inputs, results = lower(repeated).compile()(repeated.inputs, list(repeated.own), jnp.int32(1))
        yield kernel, (inputs, results)


@pytest.mark.parametrize(
    "count",
    [pytest.param(SLOTS, marks=pytest.mark.slow), 7, pytest.param(SLOTS * (1 + DRAFTS), marks=pytest.mark.slow)],
)
def test_implementations_work_on_the_same(small, monkeypatch, count):
    monkeypatch.setattr(launch, "INTERPRET", True)
    ours, theirs = dict(runs("triton", count)), dict(runs("xla", count))
    assert tuple(ours) == tuple(theirs) == (FAMILIES if count != 7 else ("plan_rows", *FAMILIES))
    for kernel in ours:
        for mine, other in zip(*(jax.tree.leaves(of[kernel]) for of in (ours, theirs)), strict=True):
            mine, other = (np.asarray(array, np.float32).reshape(-1) for array in (mine, other))
            np.testing.assert_allclose(mine, other, rtol=0.02, atol=0.05, err_msg=kernel)


def test_so_many_rows_are_computed(small):
    results = dict(runs("xla", 7))
    *_, count = results["plan_rows"][1][-1]
    assert count.tolist() == [7]
    assert results["normed_rows"][1][-1].shape == (1, 7, TINY.hidden_size)


def test_every_row_gets_its_measurement(small, monkeypatch, tmp_path):
    monkeypatch.setattr(bench.run, "measure_apart", here)
    asked = KernelBench(["tiny"], [7], SLOTS, DRAFTS, ["xla", "cublas"])
    asked = sections(asked, Settings(cache_tokens=6, steps=2, repeats=1))
    rows = run_sections("kernels", asked, Settings(), ENVIRONMENT, tmp_path, time_limit=60, on_row=lambda row: None)
    assert len(rows) == 5 + 5 + 5
    for row in rows:
        assert "error" not in row
        assert (row["weight_floor_microseconds"] is None) == (row["kernel"] not in READING or not row["microseconds"])
        ran = row["settings"]["implementation"]
        if row["implementation"] == "cublas":
            assert ran == "none: torch has no CUDA here"
        else:
            assert (row["microseconds"] > 0, ran) == (True, "xla")


def test_kernels_wait_for_a_gpu(small):
    measured = bench.kernel_step.measure("tiny", "bfloat16", [SLOTS], ["triton"], SLOTS, DRAFTS, 6, 1, 1)
    assert measured == {key_of(kernel, "triton", SLOTS): absent("kernels need a GPU") for kernel in FAMILIES}


def test_shapes_that_a_kernel_does_not_take_are_told(small, monkeypatch):
    monkeypatch.setattr(launch, "INTERPRET", True)
    measured = bench.kernel_step.measure("tiny", "float32", [SLOTS], ["triton"], SLOTS, DRAFTS, 6, 1, 1)
    assert measured[key_of("branch_attention", "triton", SLOTS)] == absent("the kernel does not take the shapes")
    assert measured[key_of("add_through", "triton", SLOTS)]["seconds"] > 0


def test_one_that_fails_leaves_the_others(small, monkeypatch):
    def compiled(work: Repeated) -> jax.stages.Compiled:
        if work.inputs.shape[-1] == TINY.intermediate_size:
            raise ValueError("no such\nproduct")
        return lower(work).compile()

    monkeypatch.setattr(bench.kernel_step, "row_kernels", lambda run: iter(()))
    monkeypatch.setattr(bench.kernel_step, "_compiled", compiled)
    measured = bench.kernel_step.measure("tiny", "bfloat16", [SLOTS], ["xla"], SLOTS, DRAFTS, 6, 1, 1)
    assert measured[key_of("down", "xla", SLOTS)] == {"error": "ValueError: no such product"}
    assert measured[key_of("qkv", "xla", SLOTS)]["seconds"] > 0


def test_cublas_multiplies_every_weight_of_every_round(monkeypatch):
    """A graph can't be captured here; the step that it would hold is run as it is."""
    made = []

    def multiply(rows: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        made.append(weight.data_ptr())
        return torch.mm(rows, weight.t())

    monkeypatch.setattr(bench.products, "CACHED_BYTES", 400)
    monkeypatch.setattr(bench.products, "STEP_BYTES", 4000)
    monkeypatch.setattr(bench.cublas_graph, "captured", lambda step: step)
    monkeypatch.setattr(bench.cublas_graph, "multiply", multiply)
    monkeypatch.setattr(bench.cublas_graph, "time_step", lambda elapsed, steps, repeats: Timing(elapsed(2) and 36, 1.5))
    timed = bench.cublas_graph.time_product(Product("down", 12, 8), 3, "float32", "cpu", steps=1, repeats=1)
    assert len(set(made)) == 4  # of 384 bytes each: more than three times 400
    assert len(made) == 2 * 3 * 4  # steps, rounds, weights
    assert (timed["seconds"], timed["spread"], timed["weight_bytes"]) == (3, 1.5, 384)
    assert timed["implementation"].startswith("torch ")


def test_cublas_multiplies_rows_by_a_matrix():
    rows, weight = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3)
    expected = rows.numpy() @ weight.numpy().T
    np.testing.assert_array_equal(bench.cublas_graph.multiply(rows, weight, torch.float32), expected)
