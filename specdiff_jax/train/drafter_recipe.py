"""The recipe of a drafter: its target, its shape, the target's responses, the objective, the optimizer, the run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from convert.hf_folder import Weights
from specdiff_jax.config import MAX_LAYERS, ModelConfig
from specdiff_jax.drafter_config import Conditioning, DrafterConfig
from specdiff_jax.drafter_config_file import parse_drafter_config
from specdiff_jax.errors import InputError
from specdiff_jax.keys import Keys, is_whole, shown
from specdiff_jax.train.drafter_objective import DrafterObjectiveSettings, default_gamma
from specdiff_jax.train.loop import LoopSettings
from specdiff_jax.train.optimizer import OptimizerSettings
from specdiff_jax.train.recipe import (
    TokenData,
    beside,
    read_loop,
    read_optimizer,
    read_token_data,
    read_toml,
    read_weights,
)

Features = Literal["online", "cached"]

_SECTIONS = ("model", "data", "objective", "optimizer", "run")
_RMS_NORM_EPS = 1e-6


@dataclass(frozen=True)
class NewDrafter:
    """A drafter that begins with random weights.

    Attributes:
        target: path, bundled name or Hugging Face id of the model that it is to draft for.
        layers: its depth.
        block_size: slots of a block, the anchor among them.
        mask_token_id: a token of the target's vocabulary that no text has.
        target_layer_ids: layers of the target whose output it reads, or how many, which are then spread evenly.
        sizes: of heads and feed-forward, under the names of config.json; those of the target where absent.
        sliding_window: positions that a row sees; None is all. With a window, slots see none of the block's later ones.
        conditioning: how it reads the context.
    """

    target: str
    layers: int
    block_size: int
    mask_token_id: int
    target_layer_ids: int | tuple[int, ...]
    sizes: Mapping[str, int]
    sliding_window: int | None
    conditioning: Conditioning


@dataclass(frozen=True)
class Measuring:
    """Answers to held-out prompts where a checkpoint is written.

    Attributes:
        prompts: how many; 0 for none.
        max_new_tokens: of each answer.
    """

    prompts: int
    max_new_tokens: int


@dataclass(frozen=True)
class DrafterRecipe:
    """All that decides what the training of a drafter gives.

    Attributes:
        path: the file.
        text: what the run's folder keeps: the file as it stands, or, where settings were changed, what it then says.
        content: what it says, as TOML.
        model: what is trained, and for which target.
        data: the target's responses.
        objective: what is minimised.
        optimizer: how.
        loop: for how long, and what is written on the way.
        width: tokens of a row of packed texts.
        weights: how the weights of the finished drafter are stored.
        features: whether the target runs in every step, or once before the first one.
        feature_cache_gb: most disk space that features may take, in 10^9 bytes.
        tau: how the acceptance length is measured on the way.
    """

    path: Path
    text: str
    content: Mapping[str, Any]
    model: NewDrafter
    data: TokenData
    objective: DrafterObjectiveSettings
    optimizer: OptimizerSettings
    loop: LoopSettings
    width: int
    weights: Weights
    features: Features
    feature_cache_gb: float
    tau: Measuring


def read_drafter_recipe(path: Path, data: Path | None = None, changes: Sequence[str] = ()) -> DrafterRecipe:
    """Read the recipe of a drafter.

    Args:
        path: the TOML file.
        data: the folder that its data files are relative to; by default the recipe's own.
        changes: settings that stand in for those of the file, each "section.key=value", the value as in TOML or a bare
            word.

    Raises:
        InputError: it can't be read or isn't TOML, or, in one line, every key that is missing, wrong or unknown.
    """
    text, content = read_toml(path)
    if changes:
        content = _changed(content, changes)
        text = _toml(content)
    keys = Keys(content)
    model = _model(keys.section("model"), path.parent)
    optimizer = read_optimizer(keys.section("optimizer"))
    run = keys.section("run")
    loop = read_loop(run, optimizer)
    section = keys.section("data")
    section.only("source", "tokens", "a drafter learns from its target's responses, which are stored as tokens")
    texts = read_token_data(section, path.parent if data is None else data)
    objective = _objective(keys.section("objective"), model.block_size, loop.seed)
    recipe = DrafterRecipe(
        path=path,
        text=text,
        content=content,
        model=model,
        data=texts,
        objective=objective,
        optimizer=optimizer,
        loop=loop,
        width=run.count("width"),
        weights=read_weights(run),
        features=cast(Features, run.choice("features", get_args(Features))),
        feature_cache_gb=run.number("feature_cache_gb", 50.0),
        tau=Measuring(run.count("tau_prompts", 0, least=0), run.count("tau_tokens", 128)),
    )
    if not keys.faults and model.block_size > recipe.width:
        keys.faults.append(f"model.block_size={model.block_size}: must not be above run.width, {recipe.width}")
    held_out = recipe.tau.prompts == 0 or texts.holdout > 0
    run.require(held_out, "needs held-out prompts, but data.holdout is 0", "tau_prompts")
    run.refuse_unknown()
    keys.refuse_unknown(_SECTIONS)
    keys.raise_faults(str(path))
    return recipe


def drafter_config(model: NewDrafter, target: ModelConfig, source: str) -> DrafterConfig:
    """Settings of a drafter for its target.

    Args:
        model: what the recipe says.
        target: settings of the target, which fill in what the recipe leaves out.
        source: the recipe, for messages.

    Raises:
        InputError: the settings don't fit the target or one another.
    """
    ids = model.target_layer_ids
    sizes = {
        "head_dim": target.head_dim,
        "intermediate_size": target.intermediate_size,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        **model.sizes,
    }
    section = {
        "mask_token_id": model.mask_token_id,
        "target_layer_ids": spread_layers(ids, target.num_layers) if isinstance(ids, int) else list(ids),
        "conditioning": model.conditioning,
    }
    kind = "full_attention" if model.sliding_window is None else "sliding_attention"
    return parse_drafter_config(
        {
            "architectures": ["DFlashDraftModel"],
            "block_size": model.block_size,
            "dflash_config": section,
            "hidden_size": target.hidden_size,
            "layer_types": [kind] * model.layers,
            "max_position_embeddings": target.max_position_embeddings,
            "num_hidden_layers": model.layers,
            "num_target_layers": target.num_layers,
            "rms_norm_eps": _RMS_NORM_EPS,
            "rope_theta": target.rotary.theta,
            "sliding_window": model.sliding_window,
            "use_sliding_window": model.sliding_window is not None,
            "vocab_size": target.vocab_size,
            **sizes,
        },
        f"{source}: model",
    )


def spread_layers(count: int, num_layers: int) -> list[int]:
    """Layers of a target, evenly from the second to the third-last, as the publication has them; one alone is the
    middle.

    Raises:
        InputError: there are not so many.
    """
    if count == 1:
        return [num_layers // 2]
    if count > num_layers - 3:
        raise InputError(
            f"model.features={count}: the target has {max(0, num_layers - 3)} layers from the second to the "
            "third-last; name fewer, or layers as target_layer_ids"
        )
    return [round(1 + index * (num_layers - 4) / (count - 1)) for index in range(count)]


def _model(section: Keys, folder: Path) -> NewDrafter:
    for key in ("target", "mask_token_id"):
        section.need(key)
    names = ("head_dim", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    conditioning = section.choice("conditioning", get_args(Conditioning)) if section.given("conditioning") else None
    model = NewDrafter(
        target=beside(section.text("target", ""), folder),
        layers=section.count("layers", limit=MAX_LAYERS),
        block_size=section.count("block_size", least=2),
        mask_token_id=section.token_id("mask_token_id") or 0,
        target_layer_ids=_layers(section),
        sizes={name: section.count(name) for name in names if section.given(name)},
        sliding_window=section.count("sliding_window") if section.given("sliding_window") else None,
        conditioning=cast(Conditioning, conditioning or "key_value"),
    )
    section.refuse_unknown()
    return model


def _layers(section: Keys) -> int | tuple[int, ...]:
    if not section.given("target_layer_ids"):
        return section.count("features")
    ids = section.items("target_layer_ids")
    section.require(not section.given("features"), "name either of them", "features", "target_layer_ids")
    whole = bool(ids) and all(is_whole(layer) for layer in ids)
    section.require(whole, "must be a list of layers", "target_layer_ids")
    section.given("features")
    return tuple(ids) if whole else (0,)


def _objective(section: Keys, block_size: int, seed: int) -> DrafterObjectiveSettings:
    settings = DrafterObjectiveSettings(
        anchors=section.count("anchors"),
        gamma=section.number("gamma", default_gamma(block_size)),
        d_pace=section.number("d_pace", least=0.0, limit=1.0) if section.given("d_pace") else None,
        fixed_anchors=section.flag("fixed_anchors", False),
        seed=seed,
    )
    both = section.given("d_pace") and section.given("gamma")
    section.require(not both, "D-PACE has no gamma: leave one out", "d_pace", "gamma")
    section.refuse_unknown()
    return settings


def _changed(content: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """What the file says, with some settings replaced."""
    sections = {name: dict(table) if isinstance(table, Mapping) else table for name, table in content.items()}
    for change in changes:
        place, equals, value = change.partition("=")
        name, dot, key = place.strip().partition(".")
        if not (equals and dot and key) or name not in _SECTIONS:
            raise InputError(f"--set {change}: must be section.key=value with one of {', '.join(_SECTIONS)}")
        table = sections.setdefault(name, {})
        if isinstance(table, dict):
            table[key] = _value(value.strip())
    return sections


def _value(text: str) -> Any:
    """A value as TOML has it, or else the bare text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _toml(content: Mapping[str, Any]) -> str:
    """Sections of plain values as TOML, whose numbers, texts, lists and booleans are JSON's."""
    lines: list[str] = []
    for name, table in content.items():
        if not isinstance(table, Mapping):
            raise InputError(f"{name}={shown(table)}: a recipe holds sections alone")
        lines += [f"[{name}]", *(f"{key} = {_written(f'{name}.{key}', value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def _written(name: str, value: Any) -> str:
    if isinstance(value, Mapping) or not isinstance(value, str | int | float | bool | list):
        raise InputError(f"{name}={shown(value)}: must be a number, a text, true, false or a list of them")
    return json.dumps(value, ensure_ascii=False)
