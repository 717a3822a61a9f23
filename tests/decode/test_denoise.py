"""The accept rule where the oracle's random confidences never come: exactly at the threshold, and in ties."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import pytest
from random_decoder import small_config

from specdiff_jax.block_spec import block_spec
from specdiff_jax.decode.denoise import accept

MASK = 39


def spec_of(family: str, sub_block: int = 4):
    return dataclasses.replace(
        block_spec(small_config(family=family, block_size=4, mask_token_id=MASK)), sub_block=sub_block
    )


@pytest.mark.parametrize(
    ("family", "expected"),
    [("fast_dllm_v2", [7, 1, MASK, MASK]), ("nemotron_labs_diffusion", [7, 1, 2, MASK])],
)
def test_at_the_threshold_only_nemotron_accepts(family, expected):
    block = jnp.asarray([[7, MASK, MASK, MASK]])
    confidence = jnp.asarray([[0.99, 0.75, 0.5, 0.25]])
    after = accept(block, jnp.asarray([[0, 1, 2, 3]]), confidence, spec_of(family), jnp.float32(0.5))
    assert after.tolist() == [expected]


def test_the_first_of_equal_confidences_is_the_surest():
    block = jnp.full((1, 4), MASK)
    after = accept(
        block, jnp.asarray([[0, 1, 2, 3]]), jnp.full((1, 4), 0.25), spec_of("fast_dllm_v2"), jnp.float32(0.9)
    )
    assert after.tolist() == [[0, MASK, MASK, MASK]]


def test_later_sub_blocks_wait_however_sure():
    block = jnp.asarray([[7, MASK, MASK, MASK]])
    confidence = jnp.asarray([[0.9, 0.1, 0.99, 0.99]])
    after = accept(block, jnp.asarray([[0, 1, 2, 3]]), confidence, spec_of("fast_dllm_v2", 2), jnp.float32(0.5))
    assert after.tolist() == [[7, 1, MASK, MASK]]


def test_a_full_block_stays():
    block = jnp.asarray([[7, 8, 9, 6]])
    after = accept(
        block, jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 4)), spec_of("nemotron_labs_diffusion"), jnp.float32(0.5)
    )
    assert after.tolist() == [[7, 8, 9, 6]]
