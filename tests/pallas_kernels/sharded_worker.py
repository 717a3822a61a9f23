"""Run on 2 simulated devices by test_triton.py: the kernels of a layer on two texts a device and on all four at once.

Prints the largest difference of every result as JSON.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pallas_kernels.rows import BY_RESIDUAL, FORCED
from pallas_kernels.triton import attention, feed_forward, launch, projection, rows

BATCH, BRANCHES, SLOTS, SIZE, GROUP, HEAD_DIM, CAPACITY = 4, 3, 4, 24, 2, 8, 20
TEXTS, WEIGHT = P("data"), P()
launch.INTERPRET = True


def layer(stream, cache, lengths, angles, residual, weight):
    """The kernels in the order of a layer; the products between them are the identity."""
    batch, count = stream.shape[0], stream.shape[0] * BRANCHES * SLOTS
    row = jnp.arange(count, dtype=jnp.int32)
    main = row // (BRANCHES * SLOTS) * BRANCHES * SLOTS + row % SLOTS
    rule = jnp.where(main == row, FORCED, BY_RESIDUAL).astype(jnp.int32)
    _, _, index, slot, used = rows.plan_rows(residual.reshape(-1), rule, jnp.float32(0.5), main)
    flat = stream.reshape(count, SIZE)
    normed = projection.normed_rows(flat, flat, weight, 1e-6, index, used, count)
    heads = normed[:, : (GROUP + 2) * 4].reshape(count, 1, GROUP + 2, 4)
    heads = jnp.concatenate([heads, heads], axis=-1)
    rotated = projection.rotated_heads(heads, None, index, used, jnp.cos(angles), jnp.sin(angles), BRANCHES)
    shape = (batch, BRANCHES, SLOTS)
    mixed, keys, _ = attention.branch_attention(
        rotated,
        slot.reshape(shape),
        cache,
        cache,
        lengths,
        lengths // 2,
        jnp.full((batch, SLOTS), 0.3),
        jnp.full(shape, SLOTS, jnp.int32),
    )
    summed, gate = feed_forward.add_through(flat, flat, normed, slot, main)
    return {"sum": summed, "residual": gate, "mixed": mixed, "keys": keys}


if __name__ == "__main__":
    generator = np.random.default_rng(0)
    arguments = (
        generator.normal(size=(BATCH, BRANCHES, SLOTS, SIZE)).astype(np.float32),
        generator.normal(size=(BATCH, 1, CAPACITY, HEAD_DIM)).astype(np.float32),
        np.array([7, 0, 12, 3], np.int32),
        generator.normal(size=(BATCH, SLOTS, HEAD_DIM // 2)).astype(np.float32),
        generator.random((BATCH, BRANCHES, SLOTS)).astype(np.float32),
        generator.normal(size=SIZE).astype(np.float32),
    )
    mesh = Mesh(np.array(jax.devices()), ("data",))
    assert mesh.size == 2
    specs = (*[TEXTS] * 5, WEIGHT)
    sharded = jax.shard_map(layer, mesh=mesh, in_specs=specs, out_specs=TEXTS, check_vma=False)
    found, expected = jax.jit(sharded)(*arguments), jax.jit(layer)(*arguments)
    apart = {name: np.abs(np.asarray(found[name]) - np.asarray(expected[name])).max() for name in found}
    print(json.dumps({name: float(value) for name, value in apart.items()}))
