"""The bytes that a forward has to read."""

from __future__ import annotations

import pytest
from random_decoder import MOE, small_config

from bench.target import weight_bytes
from specdiff_jax.loading import random_model

HIDDEN = 24
EXPERT = 3 * HIDDEN * MOE.intermediate_size  # numbers of one expert
ATTENTION = HIDDEN * 8 * (4 + 2 + 2 + 4) + 2 * HIDDEN  # queries, keys, values, output; two norms
DENSE = 3 * HIDDEN * 36
HEAD = 40 * HIDDEN + HIDDEN  # with the last norm


@pytest.mark.parametrize(("rows", "experts"), [(1, 2.0), (2, 6 * (1 - (4 / 6) ** 2)), (500, 6.0)])
def test_a_sparse_model_reads_the_experts_that_are_chosen(rows, experts):
    model = random_model(small_config(moe=MOE), dtype="float32")
    router = MOE.num_experts * HIDDEN
    expected = HEAD + 2 * ATTENTION + DENSE + router + experts * EXPERT
    assert weight_bytes(model, rows) == pytest.approx(4 * expected, abs=4)
