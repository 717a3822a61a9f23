"""A training run as a TOML file: the model, its data, the objective, the optimizer, the run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from convert.hf_folder import Weights
from specdiff_jax.config import ModelConfig, parse_config
from specdiff_jax.errors import InputError
from specdiff_jax.keys import Keys, shown
from specdiff_jax.loading import DTYPES
from specdiff_jax.train.loop import LoopSettings
from specdiff_jax.train.optimizer import OptimizerSettings
from specdiff_jax.train.tokenizer import END, MASK, SMALLEST_VOCABULARY, SPECIAL_TOKENS

# Each objective trains the family of its name; next-token prediction trains the autoregressive ones.
DIFFUSION_FAMILIES = {"fast_dllm_v2": "fast_dllm_v2", "nemotron": "nemotron_labs_diffusion"}
NEXT_TOKEN = "next_token"

# Keys of config.json that a fresh model does not choose: the vocabulary is the trained tokenizer's.
_OF_TOKENIZER = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id")
_SECTIONS = ("model", "tokenizer", "data", "objective", "optimizer", "run")
_LARGEST_VOCABULARY = 1_000_000


@dataclass(frozen=True)
class FreshModel:
    """A model that begins with random weights and a tokenizer trained for it.

    Attributes:
        config: content of its config.json, ids and vocabulary included.
        vocab_size: tokens of the tokenizer.
    """

    config: Mapping[str, Any]
    vocab_size: int


@dataclass(frozen=True)
class AdaptedModel:
    """A model that begins with the weights of another.

    Attributes:
        init: path, bundled name or Hugging Face id of that one.
        block_size: of the Fast-dLLM v2 model that it becomes; None where the family stays.
        mask_token_id: a token of its vocabulary that no text has; None where the family stays.
    """

    init: str
    block_size: int | None
    mask_token_id: int | None


@dataclass(frozen=True)
class TaskData:
    """Texts that are generated.

    Attributes:
        examples_per_task: texts of each task.
        seed: which texts.
    """

    examples_per_task: int
    seed: int


@dataclass(frozen=True)
class TokenData:
    """Texts that are stored as token ids; see `examples.read_token_files`.

    Attributes:
        prompts: the .npz file of the prompts.
        responses: .npz files of responses, each to all prompts.
        max_repeat_percent: responses that repeat more are left out.
        holdout: number of prompts, from the end, that are for validation only.
    """

    prompts: Path
    responses: tuple[Path, ...]
    max_repeat_percent: int
    holdout: int


@dataclass(frozen=True)
class ObjectiveSettings:
    """What is minimised.

    Attributes:
        name: "fast_dllm_v2", "nemotron" or "next_token".
        options: keyword arguments of the objective of that name.
    """

    name: str
    options: Mapping[str, float | bool]


@dataclass(frozen=True)
class Recipe:
    """All that decides what a training run gives.

    Attributes:
        path: the file.
        text: it as it stands.
        content: what it says, as TOML.
        model: what is trained.
        data: what it is trained on.
        objective: what is minimised.
        optimizer: how.
        loop: for how long, and what is written on the way.
        width: tokens of a row of packed texts.
        weights: how the weights of the finished model are stored.
    """

    path: Path
    text: str
    content: Mapping[str, Any]
    model: FreshModel | AdaptedModel
    data: TaskData | TokenData
    objective: ObjectiveSettings
    optimizer: OptimizerSettings
    loop: LoopSettings
    width: int
    weights: Weights

    def check_model(self, config: ModelConfig) -> None:
        """Refuse a model that the objective can't train or that the rows are too wide for.

        Raises:
            InputError: naming the key.
        """
        name = self.objective.name
        wanted = DIFFUSION_FAMILIES.get(name)
        fits = config.block_size is None if wanted is None else config.family == wanted
        if not fits:
            fault = f"objective.name={shown(name)}: doesn't train a {config.family} model; {_OBJECTIVE_OF}"
            raise InputError(f"{self.path}: {fault}")
        limit = config.max_position_embeddings
        if self.width > limit:
            fault = f"run.width={self.width}: must not be above the model's max_position_embeddings, {limit}"
            raise InputError(f"{self.path}: {fault}")


_OBJECTIVE_OF = (
    f"{', '.join(f'{name} is for {family}' for name, family in DIFFUSION_FAMILIES.items())}, "
    f"{NEXT_TOKEN} for autoregressive families"
)


def read_recipe(path: Path, data: Path | None = None) -> Recipe:
    """Read a recipe.

    Args:
        path: the TOML file.
        data: the folder that its data files are relative to; by default the recipe's own.

    Raises:
        InputError: it can't be read or isn't TOML, or, in one line, every key that is missing, wrong or unknown.
    """
    text, content = read_toml(path)
    keys = Keys(content)
    model = _model(keys, content, path.parent)
    objective = _objective(keys.section("objective"))
    optimizer = read_optimizer(keys.section("optimizer"))
    run = keys.section("run")
    loop = read_loop(run, optimizer)
    width, weights = run.count("width"), read_weights(run)
    run.refuse_unknown()
    texts = _data(keys.section("data"), path.parent if data is None else data)
    if isinstance(texts, TokenData) and isinstance(model, FreshModel):
        keys.faults.append('data.source="tokens": its ids are those of a model, which model.init must name')
    keys.refuse_unknown(_SECTIONS)
    keys.raise_faults(str(path))
    if isinstance(texts, TaskData) and data is not None:
        raise InputError(f'--data {data}: has no effect with data.source="tasks" in {path}: leave it out')
    recipe = Recipe(path, text, content, model, texts, objective, optimizer, loop, width, weights)
    if isinstance(model, FreshModel):
        recipe.check_model(parse_config(model.config, f"{path}: model"))
    return recipe


def check_same(content: Mapping[str, Any], file: Path) -> None:
    """Refuse a recipe, given by what it says, that says anything else than the one in a file.

    Raises:
        InputError: it does, naming the first key; or the file can't be read.
    """
    before, now = _flat(read_toml(file)[1]), _flat(content)
    for key in (*now, *before):
        if before.get(key) != now.get(key):
            values = [shown(values[key]) if key in values else "nothing" for values in (now, before)]
            raise InputError(
                f"{key} is {values[0]}, but {values[1]} in {file}: resume with the recipe that the run began with, "
                "or choose another --out"
            )


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """A file as it stands, and what it says.

    Raises:
        InputError: it can't be read or isn't TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid TOML ({error})") from error


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _model(keys: Keys, content: Mapping[str, Any], folder: Path) -> FreshModel | AdaptedModel:
    section, tokenizer = keys.section("model"), keys.section("tokenizer")
    if section.given("init"):
        model = _adapted(section, folder)
        keys.require(not keys.given("tokenizer"), "a model with init keeps its tokenizer: leave it out", "tokenizer")
        return model
    size = tokenizer.count("vocab_size", limit=_LARGEST_VOCABULARY, least=SMALLEST_VOCABULARY)
    tokenizer.refuse_unknown()
    table = content.get("model")
    given = dict(table) if isinstance(table, Mapping) else {}
    chosen = [key for key in _OF_TOKENIZER if key in given]
    why = "follows from the tokenizer: leave it out"
    keys.faults.extend(f"model.{key}={shown(given[key])}: {why}" for key in chosen)
    config = {**given, "vocab_size": size, "eos_token_id": SPECIAL_TOKENS.index(END)}
    if "bd_size" in given or "block_size" in given:
        config["mask_token_id"] = SPECIAL_TOKENS.index(MASK)
    try:
        parse_config(config, "model")
    except InputError as error:
        keys.faults.append(str(error))
    return FreshModel(config, size)


def _adapted(section: Keys, folder: Path) -> AdaptedModel:
    init = beside(section.text("init", ""), folder)
    block_size = section.count("block_size") if section.given("block_size") else None
    mask_token_id = section.token_id("mask_token_id")
    both = section.given("block_size") == section.given("mask_token_id")
    section.require(both, "block_size and mask_token_id go together", "block_size", "mask_token_id")
    section.refuse_unknown()
    return AdaptedModel(init, block_size, mask_token_id)


def beside(model: str, folder: Path) -> str:
    """A model's name, or its path where it stands in the folder."""
    return str(folder / model) if (folder / model).exists() else model


def _data(section: Keys, folder: Path) -> TaskData | TokenData:
    if section.choice("source", ("tasks", "tokens")) == "tokens":
        return read_token_data(section, folder)
    data = TaskData(section.count("examples_per_task"), section.count("seed", least=0))
    section.refuse_unknown()
    return data


def read_token_data(section: Keys, folder: Path) -> TokenData:
    """Stored texts, whose files are relative to the folder; faults are noted in the section."""
    section.need("prompts")
    section.need("responses")
    responses = section.items("responses")
    named = bool(responses) and all(isinstance(name, str) for name in responses)
    section.require(named, "must be a list of file names", "responses")
    data = TokenData(
        folder / section.text("prompts", ""),
        tuple(folder / name for name in responses if isinstance(name, str)),
        section.count("max_repeat_percent", limit=100, least=0),
        section.count("holdout", least=0),
    )
    section.refuse_unknown()
    return data


def _objective(section: Keys) -> ObjectiveSettings:
    name = section.choice("name", (*DIFFUSION_FAMILIES, NEXT_TOKEN))
    options: dict[str, float | bool] = {}
    if name == "fast_dllm_v2":
        options = {"clean_seed": section.flag("clean_seed", True)}
    elif name == "nemotron":
        options = {
            "diffusion_weight": section.number("diffusion_weight", 1.0),
            "next_token_weight": section.number("next_token_weight", 1.0),
        }
    section.refuse_unknown()
    return ObjectiveSettings(name, options)


def read_optimizer(section: Keys) -> OptimizerSettings:
    """How gradients become steps; faults are noted in the section."""
    name = cast(Literal["adamw", "muon"], section.choice("name", ("adamw", "muon")))
    rate = section.number("learning_rate")
    betas = section.items("betas") or [0.9, 0.95]
    fractions = len(betas) == 2 and all(isinstance(beta, float) and 0 <= beta < 1 for beta in betas)
    section.require(fractions, "must be two numbers from 0 to below 1", "betas")
    settings = OptimizerSettings(
        name,
        rate,
        section.number("adam_learning_rate") if name == "muon" else rate,
        section.count("warmup_steps", least=0),
        cast(Literal["cosine", "linear"], section.choice("decay", ("cosine", "linear"))),
        section.number("final_fraction", least=0.0, limit=1.0),
        section.number("weight_decay", least=0.0),
        (betas[0], betas[1]) if fractions else (0.9, 0.95),
        section.number("clip_norm"),
    )
    section.refuse_unknown()
    return settings


def read_weights(section: Keys) -> Weights:
    """How the weights of the finished model are stored; a fault is noted in the section."""
    return cast(Weights, section.choice("weights", ("int8", "bfloat16", "float32")))


def read_loop(section: Keys, optimizer: OptimizerSettings) -> LoopSettings:
    """For how long a run goes; faults are noted in the section, which may hold more keys."""
    settings = LoopSettings(
        steps=section.count("steps"),
        batch_rows=section.count("batch_rows"),
        seed=section.count("seed", least=0),
        dtype=section.choice("dtype", DTYPES),
        log_every=section.count("log_every"),
        checkpoint_every=section.count("checkpoint_every"),
        keep=section.count("keep"),
    )
    for key, steps in (("steps", settings.steps), ("checkpoint_every", settings.checkpoint_every)):
        whole = steps % settings.log_every == 0
        section.require(whole, f"{key} must be a multiple of log_every", key, "log_every")
    why = f"must be above optimizer.warmup_steps, {optimizer.warmup_steps}"
    section.require(settings.steps > optimizer.warmup_steps, why, "steps")
    return settings
