"""The device programs of training: many steps in one, and the loss of texts that are not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int32, Key

from convert.params import with_arrays
from specdiff_jax.train.checkpoints import TrainState
from specdiff_jax.train.objectives import Batch, Metrics, Objective
from specdiff_jax.train.packing import PackedTexts

TEXT_TOKENS = "text_tokens"
"""Metric of a step: tokens that are no padding."""

ROWS = "rows"
"""In a batch: which rows of the texts they are."""

FEATURES = "features"
"""In a batch, where they are streamed: a target's features of every token."""

Params: TypeAlias = dict[str, Array]
"""Float32 parameters by their dotted names."""

Loss: TypeAlias = Callable[[Params, nnx.State, Batch, Key[Array, ""]], tuple[Float[Array, ""], Metrics]]
"""(parameters, weights that stay as they are, batch, key) -> loss, metrics."""

Texts: TypeAlias = Mapping[str, Array]
"""`PackedTexts` on the devices, all rows, in the small integer types that they came in."""

Streamed: TypeAlias = Mapping[str, np.ndarray]
"""Arrays [rows, ...] that stay on the host: a batch has those of its rows, under the same names."""

StepsProgram: TypeAlias = Callable[
    [TrainState, Texts, nnx.State, Int32[np.ndarray, "steps batch"], int], tuple[TrainState, Metrics]
]


def make_loss(graphdef: nnx.GraphDef, abstract: nnx.State, objective: Objective, dtype: str) -> Loss:
    """An objective as a function of float32 parameters, all of which it trains, computed in `dtype`.

    Args:
        graphdef: the decoder without its weights.
        abstract: its state, of which only the structure counts.
        objective: what to minimise.
        dtype: of weights and activations.
    """

    def loss(params: Params, frozen: nnx.State, batch: Batch, key: Key[Array, ""]) -> tuple[Float[Array, ""], Metrics]:
        del frozen
        computed = {name: array.astype(dtype) for name, array in params.items()}
        return objective(nnx.merge(graphdef, with_arrays(abstract, computed)), batch, key)

    return loss


def on_devices(texts: PackedTexts, mesh: Mesh) -> Texts:
    """All rows on every device."""
    arrays = {name: getattr(texts, name) for name in ("tokens", "positions", "segments", "blocks", "response")}
    return jax.device_put(arrays, NamedSharding(mesh, P()))


def compile_steps(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    seed: int,
    mesh: Mesh,
    state: TrainState,
    texts: Texts,
    frozen: nnx.State,
    streamed: Streamed,
    shape: tuple[int, int],
) -> StepsProgram:
    """Compile (state, texts, frozen, rows of each step, number of the first step) -> (state, metrics of each step).

    The state is donated. Compiled ahead of time, it can't be compiled again by mistake.

    Args:
        loss: what to minimise.
        optimizer: how.
        seed: of the keys that the steps get.
        mesh: the devices, which share each batch.
        state: parameters and moments.
        texts: what to learn.
        frozen: weights that the loss reads and that stay as they are.
        streamed: what else a batch has, from the host.
        shape: number of steps, rows a step.
    """

    def one_step(
        state: TrainState,
        texts: Texts,
        frozen: nnx.State,
        rows: Int32[Array, " batch"],
        given: Mapping[str, Array],
        number: Int32[Array, ""],
    ) -> tuple[TrainState, Metrics]:
        batch = {**_take(texts, rows, mesh), **given}
        key = jax.random.fold_in(jax.random.key(seed), number)
        (value, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(state.params, frozen, batch, key)
        updates, moments = optimizer.update(gradients, state.optimizer, state.params)
        measured = {
            **metrics,
            "loss": value,
            "gradient_norm": optax.tree.norm(gradients),
            TEXT_TOKENS: jnp.sum(batch["segments"] > 0),
        }
        return TrainState(optax.apply_updates(state.params, updates), moments), measured

    def steps(
        state: TrainState,
        texts: Texts,
        frozen: nnx.State,
        rows: Int32[Array, "steps batch"],
        given: Mapping[str, Array],
        first: Int32[Array, ""],
    ) -> tuple[TrainState, Metrics]:
        numbers = first + jnp.arange(rows.shape[0], dtype=jnp.int32)
        return jax.lax.scan(
            lambda state, inputs: one_step(state, texts, frozen, *inputs), state, (rows, given, numbers)
        )

    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(None, "data"))
    program = jax.jit(
        steps,
        donate_argnums=0,
        in_shardings=(everywhere, everywhere, everywhere, split, split, everywhere),
        out_shardings=everywhere,
    )
    rows = jax.ShapeDtypeStruct(shape, jnp.int32)
    given = {name: jax.ShapeDtypeStruct((*shape, *array.shape[1:]), array.dtype) for name, array in streamed.items()}
    compiled = program.lower(state, texts, frozen, rows, given, jax.ShapeDtypeStruct((), jnp.int32)).compile()

    def run(
        state: TrainState, texts: Texts, frozen: nnx.State, rows: Int32[np.ndarray, "steps batch"], first: int
    ) -> tuple[TrainState, Metrics]:
        given = {name: array[rows] for name, array in streamed.items()}
        return compiled(state, texts, frozen, rows, given, np.int32(first))

    return run


def make_evaluation(
    loss: Loss, seed: int, mesh: Mesh, texts: PackedTexts, batch_rows: int, frozen: nnx.State
) -> Callable[[Params], float]:
    """A function from parameters to the mean loss of all batches of the texts, with the same masks every time.

    To fill the last batch, rows from the start come again. Nothing is streamed: the loss makes it anew.
    """
    batches = -(-texts.rows // batch_rows)
    rows = (np.arange(batches * batch_rows) % texts.rows).astype(np.int32).reshape(batches, batch_rows)
    data = on_devices(texts, mesh)

    @jax.jit
    def evaluate(
        params: Params, frozen: nnx.State, data: Texts, rows: Int32[Array, "batches batch"]
    ) -> Float[Array, ""]:
        keys = jax.random.split(jax.random.key(seed), rows.shape[0])
        return jnp.mean(
            jax.lax.map(lambda given: loss(params, frozen, _take(data, given[0], mesh), given[1])[0], (rows, keys))
        )

    return lambda params: float(evaluate(params, frozen, data, rows))


def _take(texts: Texts, rows: Int32[Array, " batch"], mesh: Mesh) -> Batch:
    """Some rows as an objective takes them, shared among the devices."""
    taken = {ROWS: rows, **{name: array[rows] for name, array in texts.items()}}
    batch = {name: array if array.dtype == bool else array.astype(jnp.int32) for name, array in taken.items()}
    return jax.lax.with_sharding_constraint(batch, NamedSharding(mesh, P("data")))
