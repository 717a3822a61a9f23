"""A matrix product in torch, which is cuBLAS's, under a CUDA graph."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch

from bench.kernels import timed
from bench.measure import Timing, time_step
from bench.products import Product
from bench.section import failure
from bench.torch_clock import torch_seconds


def time_product(product: Product, rows: int, dtype: str, device: str, *, steps: int, repeats: int) -> dict[str, Any]:
    """Time of so many rows times a random matrix, as `bench.kernels.timed` has it; or an error.

    A step is one replay of a graph in which matrices take turns as in `Product`.
    """
    kind = getattr(torch, dtype)
    inputs = torch.randn(rows, product.inputs, dtype=kind, device=device)
    shape = (product.outputs, product.inputs)
    weights = [torch.randn(shape, dtype=kind, device=device) for _ in range(product.copies(kind.itemsize))]
    rounds = product.rounds(kind.itemsize)

    def step() -> None:
        for _ in range(rounds):
            for weight in weights:
                multiply(inputs, weight, torch.float32 if product.logits else kind)

    try:
        replay = captured(step)
        timing = time_step(
            lambda count: torch_seconds(lambda: [replay() for _ in range(count)], device), steps=steps, repeats=repeats
        )
    except Exception as error:
        traceback.print_exc()
        return failure(error)
    alone = Timing(timing.seconds / (rounds * len(weights)), timing.spread)
    return timed(alone, f"torch {torch.__version__}", product.weight_bytes(kind.itemsize))


def multiply(rows: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows times a matrix that is stored (outputs, inputs)."""
    if dtype == rows.dtype:
        return torch.mm(rows, weight.t())
    return torch.mm(rows, weight.t(), out_dtype=dtype)


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The replay of what a step launches; the step runs once before, since cuBLAS prepares itself then."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
