"""`specdiff train block-diffusion`, from a recipe to a model that loads."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from tiny_recipe import write_recipe

import specdiff_jax as sd

COMMAND = ("train", "block-diffusion")


@pytest.fixture
def refused(specdiff, tmp_path):
    """Runs the command, asserts that it refuses in one line and leaves nothing, and returns the line."""

    def run(*arguments: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        outcome = specdiff(*COMMAND, *arguments)
        assert (outcome.code, outcome.stdout) == (2, "")
        (line,) = outcome.stderr.splitlines()
        assert line.startswith("specdiff: error: ")
        assert sorted(tmp_path.rglob("*")) == before
        return line

    return run


def test_from_recipe_to_model(specdiff, tmp_path, monkeypatch):
    recipe, out = write_recipe(tmp_path / "r.toml"), tmp_path / "out"
    outcome = specdiff(*COMMAND, "--recipe", recipe, "--out", out, "--json")
    assert outcome.code == 0, outcome.stderr
    (row,) = outcome.rows
    assert (row["model"], row["steps"]) == (str(out / "model"), 30)
    assert "step 30/30" in outcome.stderr
    assert {path.name for path in out.iterdir()} >= {"recipe.toml", "data", "checkpoints", "log.csv", "model"}
    assert (out / "recipe.toml").read_text() == recipe.read_text()
    model = sd.load(out / "model")
    assert (model.config.family, model.config.block_size, model.stop_ids) == ("fast_dllm_v2", 32, (0,))
    assert model.tokenizer is not None
    assert model.tokenizer.has_chat_template
    losses = np.genfromtxt(out / "log.csv", delimiter=",", names=True)["loss"]
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 0.5
    assert losses[-1] == row["loss"]

    # The model is lost, the last checkpoint is not; and matplotlib is away.
    weights = (out / "model" / "model.safetensors").read_bytes()
    for path in (out / "model").iterdir():
        path.unlink()
    (out / "model").rmdir()
    (out / "loss.png").unlink(missing_ok=True)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    again = specdiff(*COMMAND, "--recipe", recipe, "--out", out, "--resume")
    assert (again.code, again.stdout) == (0, f"{out / 'model'}\n")
    assert again.stderr.startswith("no loss.png, since matplotlib isn't installed")
    assert (out / "model" / "model.safetensors").read_bytes() == weights

    finished = specdiff(*COMMAND, "--recipe", recipe, "--out", out, "--resume")
    assert (finished.code, finished.stdout) == (0, f"{out / 'model'}\n")
    assert "is finished" in finished.stderr


def test_absent_recipe(refused, tmp_path):
    line = refused("--recipe", tmp_path / "absent.toml", "--out", tmp_path / "out")
    assert "absent.toml: cannot be read" in line


@pytest.mark.parametrize("steps", [0, -1])
def test_no_steps(refused, tmp_path, steps):
    recipe = write_recipe(tmp_path / "r.toml", run__steps=steps)
    assert f"run.steps={steps}" in refused("--recipe", recipe, "--out", tmp_path / "out")


def test_rows_that_are_too_narrow(refused, tmp_path):
    recipe = write_recipe(tmp_path / "r.toml", run__width=32)
    assert "make the rows wider" in refused("--recipe", recipe, "--out", tmp_path / "out")


def test_absent_data(refused, tmp_path, tiny_checkpoint):
    data = {"source": "tokens", "prompts": "p.npz", "responses": ["r.npz"], "max_repeat_percent": 30, "holdout": 1}
    model = {"init": str(tiny_checkpoint), "block_size": 8, "mask_token_id": 1}
    recipe = write_recipe(tmp_path / "r.toml", model=model, tokenizer=None, data=data, run__width=64)
    line = refused("--recipe", recipe, "--out", tmp_path / "out", "--data", tmp_path / "data")
    assert f"{tmp_path / 'data' / 'p.npz'}: cannot be read" in line


def test_folder_that_exists(refused, tmp_path):
    recipe, out = write_recipe(tmp_path / "r.toml"), tmp_path / "out"
    out.mkdir()
    assert "exists already; give --resume" in refused("--recipe", recipe, "--out", out)
    assert "holds no run to resume" in refused("--recipe", recipe, "--out", out, "--resume")


def test_folder_in_no_folder(refused, tmp_path):
    recipe = write_recipe(tmp_path / "r.toml")
    assert "create it first" in refused("--recipe", recipe, "--out", tmp_path / "absent" / "out")


def test_resuming_another_recipe(refused, tmp_path):
    recipe, out = write_recipe(tmp_path / "r.toml"), tmp_path / "out"
    out.mkdir()
    write_recipe(out / "recipe.toml", optimizer__learning_rate=0.5)
    line = refused("--recipe", recipe, "--out", out, "--resume")
    assert "optimizer.learning_rate is 0.01, but 0.5 in" in line


def test_diverging_run(specdiff, monkeypatch, tmp_path):
    from specdiff_jax.train.loop import NonFiniteLossError

    def diverge(*_: object, **__: object) -> None:
        raise NonFiniteLossError("step 7: loss is nan: lower learning_rate")

    monkeypatch.setattr("specdiff_jax.train.run.run", diverge)
    outcome = specdiff(*COMMAND, "--recipe", write_recipe(tmp_path / "r.toml"), "--out", tmp_path / "out")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert outcome.stderr == "training stopped at step 7: loss is nan: lower learning_rate\n"
