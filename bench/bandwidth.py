"""How fast the device reads memory: what weight floors are divided by."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bench.measure import seconds_of, time_step

COLUMNS = 2**17
GPU_BYTES, CPU_BYTES = 4_000_000_000, 100_000_000


def measure(repeats: int) -> dict[str, float]:
    """The bandwidth of the default device, with an array far larger than its caches."""
    size = CPU_BYTES if jax.default_backend() == "cpu" else GPU_BYTES
    return {"bytes_per_second": read_bandwidth(size, repeats=repeats)}


def read_bandwidth(size: int, *, repeats: int) -> float:
    """Bytes a second at which the device sums an array of about `size` bytes.

    A sum writes nothing and computes next to nothing. Each pass needs the result of the one before, so the compiler can
    neither share passes nor take them out of the loop.
    """
    rows = max(1, size // (2 * COLUMNS))
    array = jax.jit(lambda: jax.random.uniform(jax.random.key(0), (rows, COLUMNS), jnp.bfloat16))()

    @jax.jit
    def passes(array: jax.Array, count: jax.Array) -> jax.Array:
        def one(_: jax.Array, floor: jax.Array) -> jax.Array:
            return jnp.mean(jnp.maximum(array, floor.astype(array.dtype)), dtype=jnp.float32)

        return jax.lax.fori_loop(0, count, one, jnp.float32(0))

    timing = time_step(lambda count: seconds_of(lambda: passes(array, jnp.int32(count)))[0], steps=16, repeats=repeats)
    return array.nbytes / timing.seconds
