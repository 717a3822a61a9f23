"""A loop of calls on the device, each after the one before, and the time of one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from bench.measure import Timing, seconds_of, time_step

Call = Callable[[Any, Any], tuple[Any, Any]]
"""From its inputs and from what it alone reads to the inputs of the next call and to its result."""


@dataclass(frozen=True)
class Repeated:
    """A call that is repeated. Inputs, own and results are arrays or trees of them.

    Attributes:
        call: what is repeated.
        inputs: of the first call.
        own: for each call of a round what it alone reads, since calls that read the same could become one.
        rounds: of a step.
    """

    call: Call
    inputs: Any
    own: Sequence[Any]
    rounds: int


def waiting(op: Callable[[Any, Any], Any]) -> Call:
    """Calls of `op(inputs, own)`, each of which finds the inputs of the one before when that has its result.

    That costs nothing on the device; but the compiler, which takes the inputs to come out of the result, can neither
    share calls nor merge them, nor take parts of them out of the loop.
    """
    return lambda inputs, own: jax.lax.optimization_barrier((inputs, op(inputs, own)))


def lower(repeated: Repeated) -> jax.stages.Lowered:
    """The program of so many steps: `(inputs, own, steps)` to the last inputs and the results of the last round.

    Before each step the host looks whether it is the last one, which takes about 10 us; a step's calls share that. The
    rounds of a step are a loop of known length, which it starts unseen. Each call of a round has a place of its own
    for its result, so that none is copied.
    """

    call = jax.jit(repeated.call)  # traced once for all of a round

    def run(inputs: Any, own: Sequence[Any], steps: jax.Array) -> tuple[Any, Any]:
        def one_round(_: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            inputs, results = state[0], []
            for read in own:
                inputs, result = call(inputs, read)
                results.append(result)
            return inputs, results

        def step(_: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            return jax.lax.fori_loop(0, repeated.rounds, one_round, state)

        _, shapes = jax.eval_shape(lambda: one_round(0, (inputs, None)))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.fori_loop(0, steps, step, (inputs, nothing))

    return jax.jit(run).lower(repeated.inputs, list(repeated.own), jnp.int32(0))


def time_call(repeated: Repeated, program: jax.stages.Compiled, *, steps: int, repeats: int) -> Timing:
    """Time of one call.

    Args:
        repeated: the call.
        program: its loop.
        steps: that are timed in one go.
        repeats: how often.
    """
    own = list(repeated.own)

    def elapsed(count: int) -> float:
        return seconds_of(lambda: program(repeated.inputs, own, jnp.int32(count)))[0]

    timing = time_step(elapsed, steps=steps, repeats=repeats)
    return Timing(timing.seconds / (repeated.rounds * len(own)), timing.spread)
