"""The training of a drafter in its own folder, from recipe to model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
from flax import nnx

from convert.listing import listed
from specdiff_jax.drafter_config import check_pair
from specdiff_jax.drafter_config_file import config_json, parse_drafter_config
from specdiff_jax.drafter_loading import Drafter, abstract_drafter, save_drafter
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model, load
from specdiff_jax.model.drafter import BlockDrafter
from specdiff_jax.train.acceptance import held_out_prompts, measure_acceptance
from specdiff_jax.train.drafter_features import cached_features, check_room
from specdiff_jax.train.drafter_objective import anchor_candidates, drafter_objective, make_drafter_loss
from specdiff_jax.train.drafter_recipe import DrafterRecipe, drafter_config
from specdiff_jax.train.loop import train
from specdiff_jax.train.prepare import stored_texts
from specdiff_jax.train.prepared import Prepared, read_prepared
from specdiff_jax.train.programs import FEATURES, Params
from specdiff_jax.train.run import DATA, MODEL, begin, is_begun, plot
from specdiff_jax.train.shards import Layout

TAU = "tau"
"""Column of the log: acceptance length of answers to held-out prompts."""


def run_drafter(recipe: DrafterRecipe, out: Path, *, resume: bool = False, note: Callable[[str], None] = print) -> Path:
    """Train the drafter of a recipe and write it as a Hugging Face folder, in the layout of published drafters.

    The run's folder is as that of `run.run`; cached features are in its data/.

    Args:
        recipe: what to train, for which target, on what, how.
        out: the run's folder.
        resume: go on with the run that is in `out`, or begin where `out` doesn't exist. A finished run stays as it is.
        note: gets lines about the run.

    Returns:
        the drafter's folder.

    Raises:
        InputError: the recipe doesn't fit its target or data, `out` exists without `resume`, holds no run, or holds
            that of another recipe.
        NonFiniteLossError: the run diverged; it names the step.
    """
    begun = is_begun(recipe.content, out, resume)
    model = out / MODEL
    if model.exists():
        note(f"the run in {out} is finished")
        return model
    target = load(recipe.model.target, dtype=recipe.loop.dtype)
    if not begun:
        begin(recipe.text, _prepare(recipe, target, out), out, note)
    prepared = read_prepared(out / DATA)
    config = parse_drafter_config(prepared.config, str(out / DATA / "config.json"))
    check_pair(config, target.config, str(out), target.name)
    graphdef, _ = abstract_drafter(config, recipe.loop.dtype, target.implementation)
    initial = nnx.state(BlockDrafter(config, dtype="float32", rngs=nnx.Rngs(recipe.loop.seed)))
    objective = drafter_objective(recipe.objective)
    streamed = {}
    if recipe.features == "cached":
        features = out / DATA / "features.npy"
        streamed[FEATURES] = cached_features(
            prepared.texts, target, config.target_layer_ids, recipe.loop.batch_rows, features
        )
    trained = train(
        recipe.loop,
        recipe.optimizer,
        make_drafter_loss(graphdef, initial, target.graphdef, objective, recipe.loop.dtype),
        initial,
        prepared.texts,
        out,
        prepared.validation,
        frozen=target.params,
        streamed=streamed,
        measure=_measures(recipe, target, Drafter(str(out), config, graphdef, initial), prepared),
    )
    plot(out, note)
    save_drafter(trained, model, config=config, weights=recipe.weights)
    return model


def _prepare(recipe: DrafterRecipe, target: Model, out: Path) -> Prepared:
    """Settings of the drafter and packed texts, after a check that all of it fits the target."""
    if target.config.family == "fast_dllm_v2":
        raise InputError(f"model.target={target.name}: a fast_dllm_v2 model doesn't decode autoregressively")
    if not target.stop_ids:
        raise InputError(f"model.target={target.name}: has no eos_token_id, with which responses end")
    limit = target.config.max_position_embeddings
    if recipe.width > limit:
        raise InputError(f"run.width={recipe.width}: must not be above the {limit} positions of {target.name}")
    config = drafter_config(recipe.model, target.config, str(recipe.path))
    layout = Layout({}, recipe.width, None, target.stop_ids[0])
    texts, validation = stored_texts(recipe.data, layout, target.config.vocab_size)
    if not anchor_candidates({name: jnp.asarray(getattr(texts, name)) for name in ("response", "segments")}).any():
        files = listed([str(file) for file in recipe.data.responses])
        raise InputError(f"{files}: no response has two tokens, so that there is nothing to draft")
    if recipe.features == "cached":
        check_room(texts, target, config.target_layer_ids, recipe.feature_cache_gb, out.absolute().parent)
    return Prepared(config_json(config), {}, {}, texts, validation)


def _measures(
    recipe: DrafterRecipe, target: Model, drafter: Drafter, prepared: Prepared
) -> dict[str, Callable[[Params], float | None]]:
    """What is measured where a checkpoint is written, beside the validation loss."""
    if recipe.tau.prompts == 0 or prepared.validation is None:
        return {}
    longest = target.config.max_position_embeddings - recipe.tau.max_new_tokens
    prompts = held_out_prompts(prepared.validation, recipe.tau.prompts, longest)
    return {TAU: measure_acceptance(target, drafter, prompts, recipe.tau.max_new_tokens)}
