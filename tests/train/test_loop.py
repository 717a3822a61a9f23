"""The loop: what each step sees, how a run is resumed, how it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_training import ADAMW, MUON, SETTINGS, random_texts, train_tiny
from workers import ROOT, run_worker

from specdiff_jax.errors import InputError
from specdiff_jax.train.checkpoints import Checkpoints, TrainState
from specdiff_jax.train.log import read_log
from specdiff_jax.train.loop import NonFiniteLossError
from specdiff_jax.train.optimizer import make_optimizer
from specdiff_jax.train.order import rows_of_steps

WORKER = Path(__file__).with_name("loop_worker.py")
TIMES = {"tokens_per_second", "seconds"}


def untimed_log(out: Path) -> list[dict[str, float | None]]:
    return [{name: value for name, value in row.items() if name not in TIMES} for row in read_log(out / "log.csv")]


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def probe(model, batch, key):
    """A loss that needs no forward; its metrics tell what the step was given."""
    assert model.embedding[...].dtype == jnp.bfloat16
    loss = jnp.mean(jnp.square(model.embedding[...].astype(jnp.float32)))
    return loss, {"tokens": jnp.sum(batch["tokens"]), "draw": jax.random.uniform(key)}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run that ends by itself: its folder and its parameters."""
    out = tmp_path_factory.mktemp("unbroken")
    return out, train_tiny(out)


def test_killed_and_resumed_run_equals_an_unbroken_one(unbroken, tmp_path):
    out = tmp_path / "killed"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    killed = subprocess.run([sys.executable, WORKER, "killed", out], env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [row["step"] for row in untimed_log(out)] == [2, 4, 6]
    folder, params = unbroken
    assert_equal(train_tiny(out), params)
    assert untimed_log(out) == untimed_log(folder)
    assert [path.name for path in (out / "checkpoints").iterdir() if path.is_dir()] == ["8"]


def test_a_finished_run_stays_as_it_is(unbroken):
    folder, params = unbroken
    log = (folder / "log.csv").read_bytes()
    assert_equal(train_tiny(folder), params)
    assert (folder / "log.csv").read_bytes() == log


def test_the_loss_falls(unbroken):
    losses = [row["loss"] for row in untimed_log(unbroken[0])]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.1


def test_devices_share_a_batch(unbroken, tmp_path):
    losses = run_worker(WORKER, "shared", tmp_path / "shared", devices=2)
    alone = [row["loss"] for row in untimed_log(unbroken[0])]
    np.testing.assert_allclose(losses, alone, rtol=1e-4)


def test_batch_that_the_devices_can_not_share(monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "device_count", lambda: 3)
    with pytest.raises(InputError, match=r"run\.batch_rows=4: must be a multiple of the 3 devices"):
        train_tiny(tmp_path)


def test_what_a_step_is_given(tmp_path):
    texts = random_texts()
    settings = replace(SETTINGS, dtype="bfloat16", steps=6, log_every=3, checkpoint_every=6)
    params = train_tiny(tmp_path, settings, objective=probe, texts=texts, validation=random_texts(3, seed=1))
    assert all(array.dtype == np.float32 for array in params.values())
    rows = rows_of_steps(settings.seed, texts.rows, settings.batch_rows, 0, 6)
    tokens = texts.tokens[rows].sum(axis=(1, 2))
    keys = [jax.random.fold_in(jax.random.key(settings.seed), step) for step in range(6)]
    draws = [float(jax.random.uniform(key)) for key in keys]
    log = untimed_log(tmp_path)
    for line, steps in zip(log, (slice(0, 3), slice(3, 6)), strict=True):
        assert line["tokens"] == tokens[steps].mean()
        assert line["draw"] == pytest.approx(np.mean(draws[steps]), rel=1e-6)
    assert [line["validation_loss"] is None for line in log] == [True, False]
    assert log[1]["validation_loss"] == pytest.approx(np.square(params["embedding"]).mean(), rel=1e-2)


def test_non_finite_loss_names_the_step(tmp_path):
    texts = random_texts(60)
    rows = rows_of_steps(SETTINGS.seed, texts.rows, SETTINGS.batch_rows, 0, 4)
    # A row that no step before the fourth sees.
    poison = next(row for row in rows[3] if row not in rows[:3])
    tokens = texts.tokens.copy()
    tokens[poison, 0] = 1000

    def poisoned(model, batch, key):
        loss = jnp.mean(jnp.square(model.embedding[...]))
        return jnp.where(jnp.any(batch["tokens"] == 1000), jnp.nan, loss), {}

    with pytest.raises(NonFiniteLossError, match="step 3: loss is nan"):
        train_tiny(tmp_path, objective=poisoned, texts=replace(texts, tokens=tokens))
    assert [row["step"] for row in untimed_log(tmp_path)] == [2]


@pytest.mark.parametrize(
    ("rate", "validation", "found"),
    [(1e25, True, "step 2: validation_loss is inf"), (3e38, False, "step 2: weights are not finite")],
    ids=["validation", "weights"],
)
def test_a_ruinous_update_is_not_kept(tmp_path, rate, validation, found):
    """The second step's: its own loss is still that of the weights before it."""

    def squares(model, batch, key):
        return jnp.mean(jnp.square(model.embedding[...])), {}

    settings = replace(SETTINGS, steps=3, log_every=1, checkpoint_every=1)
    optimizer = replace(ADAMW, learning_rate=rate, warmup_steps=1, weight_decay=0.1 if validation else 10.0)
    texts = random_texts(3, seed=1) if validation else None
    with pytest.raises(NonFiniteLossError, match=found):
        train_tiny(tmp_path, settings, optimizer, squares, validation=texts)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()] == ["1"]


def test_every_epoch_has_every_row_once():
    seen = rows_of_steps(seed=3, rows=7, batch_rows=3, first=0, steps=14).reshape(-1, 7)
    np.testing.assert_array_equal(np.sort(seen, axis=1), np.tile(np.arange(7), (6, 1)))
    assert len({tuple(epoch) for epoch in seen.tolist()}) == 6
    assert not np.array_equal(seen, rows_of_steps(4, 7, 3, 0, 14).reshape(-1, 7))


def test_rows_do_not_depend_on_the_chunk():
    whole = rows_of_steps(3, 7, 16, 0, 6)
    np.testing.assert_array_equal(rows_of_steps(3, 7, 16, 4, 2), whole[4:])


def test_checkpoints_keep_the_newest_and_pass_over_a_broken_one(tmp_path):
    params = {"layers.0.out": jnp.arange(6.0).reshape(2, 3), "norm.weight": jnp.ones(3)}
    state = TrainState(params, make_optimizer(MUON, 8, params).init(params))
    later = jax.tree.map(lambda x: x + 1, state)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.newest() is None
        for step, saved in ((2, state), (4, state), (6, later)):
            checkpoints.save(step, saved)
    broken = tmp_path / "8.orbax-checkpoint-tmp"
    broken.mkdir()
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.newest() == 6
        found = checkpoints.restore(6, state)
    assert jax.tree.structure(found) == jax.tree.structure(later)
    for array, expected in zip(jax.tree.leaves(found), jax.tree.leaves(later), strict=True):
        np.testing.assert_array_equal(array, expected)
    assert not broken.exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.isdigit()) == ["4", "6"]
