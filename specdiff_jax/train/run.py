"""A whole training run: from a recipe to a folder with the trained model, its log and its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flax import nnx

from convert.hf_folder import save
from convert.whole_folder import appearing_whole, check_free
from specdiff_jax.block_spec import block_spec
from specdiff_jax.config import ModelConfig, parse_config
from specdiff_jax.errors import InputError
from specdiff_jax.loading import abstract_decoder, load, random_model
from specdiff_jax.train.adapt import with_zero_biases
from specdiff_jax.train.log import read_log
from specdiff_jax.train.loop import LOG, train
from specdiff_jax.train.objectives import Objective, fast_dllm_v2, nemotron, next_token
from specdiff_jax.train.plot import plot_loss
from specdiff_jax.train.prepare import prepare
from specdiff_jax.train.prepared import Prepared, read_prepared, write_prepared
from specdiff_jax.train.programs import make_loss
from specdiff_jax.train.recipe import NEXT_TOKEN, FreshModel, ObjectiveSettings, Recipe, check_same
from specdiff_jax.train.shards import Draw

MODEL = "model"
RECIPE = "recipe.toml"
PICTURE = "loss.png"
DATA = "data"

_DIFFUSION_OBJECTIVES: dict[str, Callable[..., Objective]] = {"fast_dllm_v2": fast_dllm_v2, "nemotron": nemotron}


def run(recipe: Recipe, out: Path, *, draw: Draw, resume: bool = False, note: Callable[[str], None] = print) -> Path:
    """Train the model of a recipe and write it as a Hugging Face folder.

    The run's folder holds recipe.toml, data/ (packed texts, tokenizer, config), checkpoints/, log.csv, loss.png and, at
    the end, model/. It appears once the data are ready.

    Args:
        recipe: what to train, on what, how.
        out: the run's folder.
        draw: gives the texts, where the recipe's data are tasks.
        resume: go on with the run that is in `out`, or begin where `out` doesn't exist. A finished run stays as it is.
        note: gets lines about the run.

    Returns:
        the model's folder.

    Raises:
        InputError: the recipe doesn't fit its model or data, `out` exists without `resume`, holds no run, or holds
            that of another recipe.
        NonFiniteLossError: the run diverged; it names the step.
    """
    if not is_begun(recipe.content, out, resume):
        begin(recipe.text, prepare(recipe, draw), out, note)
    model = out / MODEL
    if model.exists():
        note(f"the run in {out} is finished")
        return model
    prepared = read_prepared(out / DATA)
    config = parse_config(prepared.config, str(out / DATA / "config.json"))
    graphdef, _ = abstract_decoder(config, recipe.loop.dtype, None)
    objective = _objective(recipe.objective, config)
    initial = _initial_params(recipe, config)
    loss = make_loss(graphdef, initial, objective, recipe.loop.dtype)
    trained = train(recipe.loop, recipe.optimizer, loss, initial, prepared.texts, out, prepared.validation)
    plot(out, note)
    save(
        trained,
        model,
        config=prepared.config,
        model_config=config,
        generation_config=prepared.generation_config,
        text_files=prepared.text_files,
        weights=recipe.weights,
    )
    return model


def is_begun(content: Mapping[str, Any], out: Path, resume: bool) -> bool:
    """Whether the run of a recipe, given by what it says, is in its folder; if not, the folder may be made.

    Raises:
        InputError: the folder exists without `resume`, holds no run, or holds that of another recipe; or it can't be
            made.
    """
    if not os.path.exists(out):
        check_free(out)
        return False
    if not resume:
        raise InputError(f"{out}: exists already; give --resume to go on with its run, or choose another --out")
    if not (out / RECIPE).is_file():
        raise InputError(f"{out}: holds no run to resume; choose another --out")
    check_same(content, out / RECIPE)
    return True


def begin(recipe: str, prepared: Prepared, out: Path, note: Callable[[str], None]) -> None:
    """Make the folder of a run, with all that it starts from; `recipe` is the text of its recipe."""
    with appearing_whole(out) as folder:
        (folder / RECIPE).write_text(recipe, encoding="utf-8", newline="")
        (folder / DATA).mkdir()
        write_prepared(prepared, folder / DATA)
    note(_described(prepared))


def _described(prepared: Prepared) -> str:
    texts = prepared.texts
    count, filled = int(texts.segments.max(axis=1).sum()), float((texts.segments > 0).mean())
    dropped = f", {texts.dropped:,} texts that don't fit left out" if texts.dropped else ""
    return f"{count:,} texts in {texts.rows:,} rows of {texts.tokens.shape[1]} tokens, {filled:.0%} filled{dropped}"


def _objective(settings: ObjectiveSettings, config: ModelConfig) -> Objective:
    if settings.name == NEXT_TOKEN:
        return next_token()
    return _DIFFUSION_OBJECTIVES[settings.name](block_spec(config), **settings.options)


def _initial_params(recipe: Recipe, config: ModelConfig) -> nnx.State:
    model = recipe.model
    if isinstance(model, FreshModel):
        return random_model(config, dtype="float32", seed=recipe.loop.seed).params
    return with_zero_biases(load(model.init, dtype="float32").params, config, "float32")


def plot(out: Path, note: Callable[[str], None]) -> None:
    """Draw the loss of a run into its folder."""
    try:
        plot_loss(read_log(out / LOG), out / PICTURE)
    except ImportError:
        note(f"no {PICTURE}, since matplotlib isn't installed: pip install 'specdiff-jax[plot]'")
