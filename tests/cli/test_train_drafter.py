"""`specdiff train drafter`, from a recipe to a drafter that loads."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_drafter_recipe import write_drafter_recipe, write_responses

import specdiff_jax as sd
from specdiff_jax.drafter_loading import load_drafter

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
