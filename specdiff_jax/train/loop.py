"""The training loop: chunks of steps, each one device program, with a line of the log behind each.

Step s sees the same rows and draws the same masks whenever it runs, so that a run that was killed goes on from its
newest checkpoint as if nothing had been.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convert.params import named, with_arrays
from specdiff_jax.errors import InputError
from specdiff_jax.parallel import make_mesh
from specdiff_jax.train.checkpoints import Checkpoints, TrainState
from specdiff_jax.train.log import TrainingLog
from specdiff_jax.train.optimizer import OptimizerSettings, make_optimizer, make_schedule
from specdiff_jax.train.order import rows_of_steps
from specdiff_jax.train.packing import PackedTexts
from specdiff_jax.train.programs import (
    TEXT_TOKENS,
    Loss,
    Params,
    Streamed,
    compile_steps,
    make_evaluation,
    on_devices,
)
from specdiff_jax.train.progress import TrainingProgress

LOG = "log.csv"
CHECKPOINTS = "checkpoints"
VALIDATION = "validation_loss"


class NonFiniteLossError(ArithmeticError):
    """The loss or its gradient became NaN or infinite."""


@dataclass(frozen=True)
class LoopSettings:
    """For how long a run goes, and what it writes on the way.

    Attributes:
        steps: in all; a multiple of `log_every`.
        batch_rows: rows of packed texts a step.
        seed: of initial weights, order of the rows and masks.
        dtype: of the computation, "bfloat16" or "float32"; parameters and moments are float32.
        log_every: steps of a chunk, which are one program and one line of the log.
        checkpoint_every: steps between checkpoints, a multiple of `log_every`; there is always one at the end.
        keep: checkpoints that are kept, the newest ones.
    """

    steps: int
    batch_rows: int
    seed: int
    dtype: str
    log_every: int
    checkpoint_every: int
    keep: int


def train(
    settings: LoopSettings,
    optimizer_settings: OptimizerSettings,
    loss: Loss,
    params: nnx.State,
    texts: PackedTexts,
    out: Path,
    validation: PackedTexts | None = None,
    *,
    frozen: nnx.State | None = None,
    streamed: Streamed | None = None,
    measure: Mapping[str, Callable[[Params], float | None]] | None = None,
) -> nnx.State:
    """Minimise a loss, from the newest checkpoint in the folder on, or from the start where there is none.

    All devices share the rows of a batch. The folder gets log.csv and checkpoints/; progress is on stderr.

    Args:
        settings: for how long.
        optimizer_settings: how.
        loss: what to minimise.
        params: the initial weights.
        texts: what to learn.
        out: the folder of the run, which exists.
        validation: texts whose loss is measured, always with the same masks, where a checkpoint is written.
        frozen: weights that the loss reads beside those that are trained; none by default.
        streamed: what batches have beside the texts, from the host; nothing by default.
        measure: what else is measured where a checkpoint is written, by column of the log.

    Returns:
        the trained weights, float32.

    Raises:
        InputError: the devices can't share a batch evenly.
        NonFiniteLossError: it names the step.
    """
    mesh = _data_mesh(settings.batch_rows)
    optimizer = make_optimizer(optimizer_settings, settings.steps, named(params))
    rate = make_schedule(optimizer_settings, optimizer_settings.learning_rate, settings.steps)
    state = _initial_state(params, optimizer, mesh)
    placed = jax.device_put(nnx.State({}) if frozen is None else frozen, NamedSharding(mesh, P()))
    measures = dict(measure or {})
    if validation is not None:
        evaluate = make_evaluation(loss, settings.seed, mesh, validation, settings.batch_rows, placed)
        measures = {VALIDATION: evaluate, **measures}
    with Checkpoints(out / CHECKPOINTS, settings.keep) as checkpoints:
        newest = checkpoints.newest()
        if newest is not None:
            state = checkpoints.restore(newest, state)
        first = newest or 0
        log = TrainingLog(out / LOG, first // settings.log_every)
        chunks = _chunks(settings, optimizer, loss, mesh, texts, placed, streamed or {}, first, state)
        with TrainingProgress(first, settings.steps) as progress:
            for chunk in chunks:
                state = chunk.state
                is_checkpoint = chunk.step % settings.checkpoint_every == 0 or chunk.step == settings.steps
                row: dict[str, int | float | None] = {"step": chunk.step, "loss": chunk.loss, **chunk.metrics}
                row["learning_rate"] = float(rate(chunk.step - 1))
                if is_checkpoint:
                    _check_weights(state.params, chunk.step)
                for name, measured in measures.items():
                    row[name] = measured(state.params) if is_checkpoint else None
                _check_validation(row, chunk.step)
                log.append(row, chunk.tokens, chunk.seconds)
                progress.update(chunk.step, chunk.loss, chunk.tokens / chunk.seconds)
                if is_checkpoint:
                    checkpoints.save(chunk.step, state)
    return with_arrays(params, state.params)


class _Chunk(NamedTuple):
    """What `log_every` steps gave.

    Attributes:
        step: steps that have been made.
        state: after them; the next chunk takes its memory.
        loss: mean over the steps.
        metrics: what else was measured, likewise.
        tokens: tokens of texts in them.
        seconds: what they took.
    """

    step: int
    state: TrainState
    loss: float
    metrics: dict[str, float]
    tokens: int
    seconds: float


def _chunks(
    settings: LoopSettings,
    optimizer: optax.GradientTransformation,
    loss: Loss,
    mesh: Mesh,
    texts: PackedTexts,
    frozen: nnx.State,
    streamed: Streamed,
    first: int,
    state: TrainState,
) -> Iterator[_Chunk]:
    """The chunks from `first` on, as they are asked for; their program is compiled at once, if there are any."""
    if first == settings.steps:
        return iter(())
    data, count, batch_rows = on_devices(texts, mesh), settings.log_every, settings.batch_rows
    run = compile_steps(loss, optimizer, settings.seed, mesh, state, data, frozen, streamed, (count, batch_rows))

    def chunks(state: TrainState) -> Iterator[_Chunk]:
        for step in range(first, settings.steps, count):
            start = time.perf_counter()
            rows = rows_of_steps(settings.seed, texts.rows, batch_rows, step, count)
            state, measured = run(state, data, frozen, rows, step)
            metrics = {name: np.asarray(values, np.float64) for name, values in measured.items()}
            seconds = time.perf_counter() - start
            _check_finite(metrics, step)
            tokens = int(metrics.pop(TEXT_TOKENS).sum())
            means = {name: float(values.mean()) for name, values in metrics.items()}
            yield _Chunk(step + count, state, means.pop("loss"), means, tokens, seconds)

    return chunks(state)


def _check_finite(metrics: Mapping[str, np.ndarray], first: int) -> None:
    for name in ("loss", "gradient_norm"):
        bad = np.flatnonzero(~np.isfinite(metrics[name]))
        if bad.size:
            raise _diverged(first + int(bad[0]), f"{name} is {metrics[name][bad[0]]}")


def _check_weights(params: Params, step: int) -> None:
    """The loss of a step is that before its update, which may have ruined the weights."""
    if not all(jax.tree.leaves(jax.tree.map(lambda weights: bool(jnp.isfinite(weights).all()), params))):
        raise _diverged(step, "weights are not finite")


def _check_validation(row: Mapping[str, int | float | None], step: int) -> None:
    loss = row.get(VALIDATION)
    if loss is not None and not np.isfinite(loss):
        raise _diverged(step, f"{VALIDATION} is {loss}")


def _diverged(step: int, what: str) -> NonFiniteLossError:
    return NonFiniteLossError(f"step {step}: {what}: lower learning_rate or clip_norm, or compute in float32")


def _data_mesh(batch_rows: int) -> Mesh:
    devices = jax.device_count()
    if batch_rows % devices:
        raise InputError(f"run.batch_rows={batch_rows}: must be a multiple of the {devices} devices that share a batch")
    return make_mesh(data=devices, tensor=1)


def _initial_state(params: nnx.State, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """Copies of the weights, since the first chunk takes the memory of what it gets, and moments of zero."""
    everywhere = NamedSharding(mesh, P())
    copies = {name: jnp.array(array, jnp.float32, copy=True) for name, array in named(params).items()}
    placed = jax.device_put(copies, everywhere)
    return TrainState(placed, jax.jit(optimizer.init, out_shardings=everywhere)(placed))
