"""`specdiff train drafter`, from a recipe to a drafter that loads."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_drafter_recipe import write_drafter_recipe, write_responses

import specdiff_jax as sd
from specdiff_jax.drafter_loading import load_drafter
from specdiff_jax.train import drafter_run
from specdiff_jax.train.drafter_objective import DrafterObjective, DrafterObjectiveSettings, drafter_objective

COMMAND = ("train", "drafter")
TIMES = ("tokens_per_second", "seconds")


@pytest.fixture
def folder(tmp_path: Path, tiny_checkpoint: Path) -> Path:
    """A target of random weights and its own greedy answers."""
    (tmp_path / "target").symlink_to(tiny_checkpoint)
    target = sd.load(tmp_path / "target", dtype="float32")
    prompts = [[5, 6, first] for first in range(10, 34)]
    answers = sd.generate(target, prompts, sd.Autoregressive(), max_new_tokens=24, batch_size=24)
    write_responses(tmp_path, [list(answer.tokens) for answer in answers])
    return tmp_path


def log_of(out: Path) -> dict[str, list[float]]:
    log = np.genfromtxt(out / "log.csv", delimiter=",", names=True)
    return {name: log[name].tolist() for name in log.dtype.names if name not in TIMES}


def test_from_recipe_to_drafter(specdiff, folder: Path) -> None:
    recipe, out = write_drafter_recipe(folder / "r.toml"), folder / "out"
    outcome = specdiff(*COMMAND, "--recipe", recipe, "--out", out, "--json")
    assert outcome.code == 0, outcome.stderr
    (row,) = outcome.rows
    assert (row["model"], row["steps"]) == (str(out / "model"), 30)
    log = log_of(out)
    # The target's random head gives logits of less than one, so that there is little to gain.
    assert log["loss"][-1] < log["loss"][0] - 0.05
    assert np.isfinite(log["validation_loss"]).all()
    drafter = load_drafter(out / "model", sd.load(folder / "target", dtype="float32"))
    assert (drafter.config.block_size, drafter.config.target_layer_ids) == (4, (0, 1))

    # The model and the last checkpoints are lost; the run goes on from the first, bit by bit as it was.
    weights = (out / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(out / "model")
    for step in (20, 30):
        shutil.rmtree(out / "checkpoints" / str(step))
    again = specdiff(*COMMAND, "--recipe", recipe, "--out", out, "--resume")
    assert (again.code, again.stdout) == (0, f"{out / 'model'}\n")
    assert (out / "model" / "model.safetensors").read_bytes() == weights
    assert log_of(out) == log


def test_a_changed_recipe_measures_real_acceptance(specdiff, folder: Path) -> None:
    recipe, out = write_drafter_recipe(folder / "r.toml", run__steps=10, run__tau_prompts=2), folder / "out"
    changes = ("--set", "model.conditioning=none", "--set", "objective.d_pace=0.5", "--set", "run.tau_tokens=8")
    outcome = specdiff(*COMMAND, "--recipe", recipe, "--out", out, *changes)
    assert outcome.code == 0, outcome.stderr
    (tau,) = np.atleast_1d(np.genfromtxt(out / "log.csv", delimiter=",", names=True))["tau"]
    assert 1 <= tau <= 4
    written = tomllib.loads((out / "recipe.toml").read_text())
    assert written["model"]["conditioning"] == "none"
    assert (written["objective"], written["run"]["tau_tokens"]) == ({"anchors": 8, "d_pace": 0.5}, 8)
    target = sd.load(folder / "target", dtype="float32")
    drafter = load_drafter(out / "model", target)
    assert drafter.config.conditioning == "none"
    with np.load(folder / "prompts.npz") as stored:
        prompts = stored["tokens"].reshape(-1, 3)[-2:].tolist()
    answers = sd.generate(target, prompts, sd.DFlash(drafter), max_new_tokens=8)
    assert tau == pytest.approx(np.mean([answer.acceptance_length for answer in answers]))
    # The run's recipe is one: it says all, without --set.
    again = specdiff(*COMMAND, "--recipe", recipe, "--out", out, "--resume")
    assert again.code == 2
    assert "model.conditioning is nothing" in again.stderr


def test_cached_features_give_the_same_losses(specdiff, folder: Path) -> None:
    recipe = write_drafter_recipe(folder / "r.toml", run__steps=10)
    for features in ("online", "cached"):
        outcome = specdiff(
            *COMMAND, "--recipe", recipe, "--out", folder / features, "--set", f"run.features={features}"
        )
        assert outcome.code == 0, outcome.stderr
    assert not list((folder / "cached" / "data").glob("*.partial"))
    assert (folder / "cached" / "data" / "features.npy").is_file()
    online, cached = log_of(folder / "online"), log_of(folder / "cached")
    assert cached["loss"] == pytest.approx(online["loss"], rel=1e-5)
    assert cached["validation_loss"] == pytest.approx(online["validation_loss"], rel=1e-5)


def test_a_run_that_diverges_keeps_its_checkpoint(specdiff, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, out = write_drafter_recipe(folder / "r.toml", run__steps=20), folder / "out"
    bad_step = jax.random.fold_in(jax.random.key(0), 15)

    def diverging(settings: DrafterObjectiveSettings) -> DrafterObjective:
        objective = drafter_objective(settings)

        def diverge(drafter: Any, target: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            loss, metrics = objective(drafter, target, batch, key)
            return jnp.where(jnp.all(jax.random.key_data(key) == jax.random.key_data(bad_step)), jnp.nan, loss), metrics

        return diverge

    monkeypatch.setattr(drafter_run, "drafter_objective", diverging)
    outcome = specdiff(*COMMAND, "--recipe", recipe, "--out", out)
    assert (outcome.code, outcome.stdout) == (1, "")
    assert "training stopped at step 15: loss is nan" in outcome.stderr
    assert [path.name for path in (out / "checkpoints").iterdir() if path.is_dir()] == ["10"]
    assert not (out / "model").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["model.mask_token_id=300"], "mask_token_id=300: is not in the vocabulary of 290"),
        (["model.block_size=1"], "model.block_size=1: must be a whole number from 2"),
        (["model.target_layer_ids=[0, 2]"], "target_layer_ids=[0, 2]: must hold different indices"),
        (["model.features=2"], "name either of them"),
        (["run.width=200"], "run.width=200: must not be above the 128 positions"),
        (["run.features=cached", "run.feature_cache_gb=1e-9"], "raise it, set run.features"),
        (["run.tau_prompts=2", "data.holdout=0"], "run.tau_prompts=2: needs held-out prompts"),
        (["data.max_repeat_percent=0", 'data.responses=["short.npz"]'], "short.npz: no response has two tokens"),
        (["data.source=tasks"], 'data.source="tasks": a drafter learns from its target'),
        (["objective.gamma=2", "objective.d_pace=0.5"], "leave one out"),
        (["runs.steps=3"], "--set runs.steps=3: must be section.key=value"),
        (["run.steps"], "--set run.steps: must be section.key=value"),
        (["run.steps=0"], "run.steps=0: must be a whole number from 1"),
        (["model.colour=red"], 'model.colour="red": unknown key'),
    ],
)
def test_what_does_not_fit_is_refused(refused, folder: Path, changes: list[str], said: str) -> None:
    offsets = np.arange(25)
    np.savez(folder / "short.npz", tokens=np.full(24, 9), offsets=offsets, repeat_pct=np.zeros(24, int))
    recipe = write_drafter_recipe(folder / "r.toml")
    line = refused(
        *COMMAND,
        "--recipe",
        recipe,
        "--out",
        folder / "out",
        *(part for change in changes for part in ("--set", change)),
    )
    assert said in line
    assert not (folder / "out").exists()
