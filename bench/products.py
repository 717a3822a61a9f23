"""The matrix products of a model, and how they are timed: with weights that come from memory, as in a forward."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specdiff_jax.config import ModelConfig

CACHED_BYTES = 60_000_000
"""At least as large as the L2 cache of the GPU."""

STEP_BYTES = 4_000_000_000
"""Weights that a timed step reads at least: about a millisecond, beside which its own cost is little."""


@dataclass(frozen=True)
class Product:
    """Rows times a matrix that is stored (outputs, inputs).

    Attributes:
        name: of the matrix.
        outputs: columns of the result.
        inputs: columns of the rows.
        logits: whether the result is float32 whatever the operands.
    """

    name: str
    outputs: int
    inputs: int
    logits: bool = False

    def weight_bytes(self, itemsize: int) -> int:
        """Bytes of the matrix."""
        return self.outputs * self.inputs * itemsize

    def copies(self, itemsize: int) -> int:
        """How many matrices take turns, so that none is in the cache when its turn comes."""
        return 3 * CACHED_BYTES // self.weight_bytes(itemsize) + 1

    def rounds(self, itemsize: int) -> int:
        """How often all of them are read in a timed step."""
        return max(1, math.ceil(STEP_BYTES / (self.copies(itemsize) * self.weight_bytes(itemsize))))


def products_of(config: ModelConfig) -> tuple[Product, ...]:
    """Those of a dense layer, and the head."""
    heads, pairs = config.num_heads * config.head_dim, 2 * config.num_kv_heads * config.head_dim
    hidden, width = config.hidden_size, config.intermediate_size
    return (
        Product("qkv", heads + pairs, hidden),
        Product("output", hidden, heads),
        Product("gate_up", 2 * width, hidden),
        Product("down", hidden, width),
        Product("head", config.vocab_size, hidden, logits=True),
    )
