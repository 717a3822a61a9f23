"""Run on 2 devices by test_triton.py: the kernels of a layer on two texts a device and on all four at once.

On simulated devices kernels are interpreted, on GPUs compiled. Prints the largest difference of every result as JSON.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pallas_kernels.decode_attention import HeadNorm, decode_attention
from pallas_kernels.rows import BY_RESIDUAL, FORCED
from pallas_kernels.triton import attention, feed_forward, launch, projection, rows

BATCH, BRANCHES, SLOTS, GROUP, HEAD_DIM, CAPACITY = 4, 3, 4, 2, 32, 80
SIZE = (GROUP + 2) * HEAD_DIM
EPS, SCALE, SPLITS = 1e-6, 0.3, 2
TEXTS, WEIGHT = P("data"), P()
launch.INTERPRET = jax.default_backend() != "gpu"


def layer(stream, cache, lengths, angles, residual, weight):
    """The kernels in the order of a layer, then those of a decode step; the products between them are the identity."""
    batch, count = stream.shape[0], stream.shape[0] * BRANCHES * SLOTS
    row = jnp.arange(count, dtype=jnp.int32)
    main = row // (BRANCHES * SLOTS) * BRANCHES * SLOTS + row % SLOTS
    rule = jnp.where(main == row, FORCED, BY_RESIDUAL).astype(jnp.int32)
    recomputed, source, index, slot, used = rows.plan_rows(residual.reshape(-1), rule, jnp.float32(0.5), main)
    flat = stream.reshape(count, SIZE)
    normed = projection.normed_rows(flat, flat, weight, EPS, index, used, count)
    heads = normed.reshape(count, 1, GROUP + 2, HEAD_DIM)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    rotated = projection.rotated_heads(heads, None, index, used, cos, sin, BRANCHES)
    shape = (batch, BRANCHES, SLOTS)
    mixed, keys, values = attention.branch_attention(
        rotated,
        slot.reshape(shape),
        cache,
        cache,
        lengths,
        lengths // 2,
        jnp.full((batch, SLOTS), SCALE),
        jnp.full(shape, SLOTS, jnp.int32),
    )
    summed, gate = feed_forward.add_through(flat, flat, normed, slot, main)
    stepped, appended, _ = decode_attention(
        stream[:, 0, 0].reshape(batch, 1, GROUP + 2, HEAD_DIM),
        cache,
        cache,
        lengths,
        cos[:, 0],
        sin[:, 0],
        jnp.full(batch, SCALE),
        HeadNorm(weight[:HEAD_DIM], weight[-HEAD_DIM:], EPS),
        splits=SPLITS,
        interpret=launch.INTERPRET,
    )
    return {
        "recomputed": recomputed,
        "distance to source": row - source,
        "sum": summed,
        "residual": gate,
        "mixed": mixed,
        "keys": keys,
        "values": values,
        "decode step": stepped,
        "decode cache": appended,
    }


if __name__ == "__main__":
    generator = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return generator.normal(size=shape).astype(jnp.bfloat16)

    arguments = (
        draw(BATCH, BRANCHES, SLOTS, SIZE),
        draw(BATCH, 1, CAPACITY, HEAD_DIM),
        np.array([70, 0, 12, 3], np.int32),
        generator.normal(size=(BATCH, SLOTS, HEAD_DIM // 2)).astype(np.float32),
        generator.random((BATCH, BRANCHES, SLOTS)).astype(np.float32),
        draw(SIZE),
    )
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    assert mesh.size == 2
    specs = (*[TEXTS] * 5, WEIGHT)
    sharded = jax.shard_map(layer, mesh=mesh, in_specs=specs, out_specs=TEXTS, check_vma=False)
    found, expected = jax.jit(sharded)(*arguments), jax.jit(layer)(*arguments)
    both = {name: (np.asarray(found[name], np.float32), np.asarray(expected[name], np.float32)) for name in found}
    print(json.dumps({name: float(np.abs(ours - truth).max()) for name, (ours, truth) in both.items()}))
