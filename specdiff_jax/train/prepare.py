"""From a recipe to all that its run needs: the model's settings, its tokenizer, packed texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from convert.checkpoint import open_checkpoint
from convert.listing import listed
from convert.resolve import resolve
from specdiff_jax.block_spec import block_spec
from specdiff_jax.config import parse_config, read_stop_ids
from specdiff_jax.errors import InputError
from specdiff_jax.train.adapt import fast_dllm_v2_config
from specdiff_jax.train.examples import read_token_files
from specdiff_jax.train.packing import PackedTexts, pack
from specdiff_jax.train.prepared import Prepared
from specdiff_jax.train.recipe import NEXT_TOKEN, AdaptedModel, FreshModel, Recipe, TaskData, TokenData
from specdiff_jax.train.shards import Draw, Layout, pack_drawn, shard_seed
from specdiff_jax.train.tokenizer import train_tokenizer

_TOKENIZER_TEXTS = 4000  # of each task; more would hardly change the merges


def prepare(recipe: Recipe, draw: Draw) -> Prepared:
    """Everything that a run needs before its first step, beside the weights that it begins with.

    Args:
        recipe: what to prepare.
        draw: gives the texts, where the recipe's data are tasks.

    Raises:
        InputError: a model, file or setting doesn't fit.
    """
    model, data = recipe.model, recipe.data
    settings = _adapted(model) if isinstance(model, AdaptedModel) else _fresh(model, data, draw)
    config = parse_config(settings.config, "model")
    recipe.check_model(config)
    stop_ids = read_stop_ids(settings.generation_config, config)
    if not stop_ids:
        raise InputError("model: has no eos_token_id, with which every response must end")
    spec = None if recipe.objective.name == NEXT_TOKEN else block_spec(config)
    layout = Layout(settings.text_files, recipe.width, spec, stop_ids[0])
    if isinstance(data, TaskData):
        texts, validation = pack_drawn(draw, data.examples_per_task, data.seed, layout), None
    else:
        texts, validation = stored_texts(data, layout, config.vocab_size)
    return Prepared(settings.config, settings.generation_config, settings.text_files, texts, validation)


class _Settings(NamedTuple):
    """What stands beside a model's weights, as in `Prepared`."""

    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    text_files: Mapping[str, str]


def _adapted(model: AdaptedModel) -> _Settings:
    checkpoint = open_checkpoint(resolve(model.init))
    config = checkpoint.config
    if model.block_size is not None and model.mask_token_id is not None:
        config = fast_dllm_v2_config(config, model.block_size, model.mask_token_id, checkpoint.config_location)
    return _Settings(config, checkpoint.generation_config, checkpoint.text_files)


def _fresh(model: FreshModel, data: TaskData | TokenData, draw: Draw) -> _Settings:
    assert isinstance(data, TaskData)  # a recipe with stored tokens names the model whose tokens they are
    sample = draw(shard_seed(data.seed, 0), min(data.examples_per_task, _TOKENIZER_TEXTS))
    texts = (text for prompt_and_answer in sample for text in prompt_and_answer)
    return _Settings(model.config, {}, train_tokenizer(texts, model.vocab_size))


def stored_texts(data: TokenData, layout: Layout, vocab_size: int) -> tuple[PackedTexts, PackedTexts | None]:
    """Packed texts to train on, and those to validate on, if there are any.

    Raises:
        InputError: a file doesn't fit, holds a token beyond the vocabulary, or leaves nothing to train on.
    """
    training, held_out = read_token_files(data.prompts, data.responses, data.max_repeat_percent, data.holdout)
    if not training:
        raise InputError(
            f"{listed([str(file) for file in data.responses])}: every response is held out or repeats itself too much"
        )
    texts, *validation = (
        pack(examples, layout.width, layout.spec, layout.stop_id) for examples in (training, held_out) if examples
    )
    highest = max(part.tokens.max() for part in (texts, *validation))
    if highest >= vocab_size:
        raise InputError(f"{data.prompts}: token {highest} is not in the model's vocabulary of {vocab_size}")
    return texts, validation[0] if validation else None
