"""Recipes: what is read, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_recipe import CONTENT, write_recipe

from specdiff_jax.config import parse_config
from specdiff_jax.config_files import CONFIGS
from specdiff_jax.errors import InputError
from specdiff_jax.train.recipe import AdaptedModel, FreshModel, TaskData, TokenData, check_same, read_recipe

BUNDLED = {
    "pico-fdv2": "fast_dllm_v2",
    "pico-nld": "nemotron_labs_diffusion",
    "pico-ar": "qwen3",
}
TOKENS = {"source": "tokens", "prompts": "p.npz", "responses": ["r.npz", "s.npz"], "max_repeat_percent": 30}
ADAPTED = {"init": "smollm2", "block_size": 32, "mask_token_id": 16}


def test_what_is_read(tmp_path):
    recipe = read_recipe(write_recipe(tmp_path / "r.toml"))
    assert isinstance(recipe.model, FreshModel)
    assert recipe.model.config == {
        **CONTENT["model"],
        "vocab_size": 512,
        "eos_token_id": 0,
        "mask_token_id": 3,
    }
    assert recipe.data == TaskData(12, 0)
    assert recipe.objective.options == {"clean_seed": True}
    assert recipe.optimizer.betas == (0.9, 0.95)
    assert (recipe.loop.steps, recipe.width, recipe.weights) == (30, 192, "float32")


def test_files_are_relative_to_the_recipe_or_to_the_data_folder(tmp_path):
    path = write_recipe(tmp_path / "r.toml", model=ADAPTED, tokenizer=None, data={**TOKENS, "holdout": 0})
    for folder, given in ((tmp_path, None), (Path("/d"), Path("/d"))):
        data = read_recipe(path, given).data
        assert data == TokenData(folder / "p.npz", (folder / "r.npz", folder / "s.npz"), 30, 0)


def test_init_beside_the_recipe_is_a_path(tmp_path):
    path = write_recipe(tmp_path / "r.toml", model={**ADAPTED, "init": "model"}, tokenizer=None)
    assert read_recipe(path).model == AdaptedModel("model", 32, 16)
    (tmp_path / "model").mkdir()
    assert read_recipe(path).model == AdaptedModel(str(tmp_path / "model"), 32, 16)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run__steps": 0}, "run.steps=0: must be a whole number from 1"),
        ({"run__steps": -5}, "run.steps=-5: must be a whole number from 1"),
        ({"run__steps": "many"}, 'run.steps="many": must be a whole number'),
        ({"run__steps": 25}, "run.steps=25, run.log_every=10: steps must be a multiple of log_every"),
        ({"run__checkpoint_every": 15}, "checkpoint_every must be a multiple of log_every"),
        ({"run__dtype": "float16"}, 'run.dtype="float16": must be one of bfloat16, float32'),
        ({"run__weights": "int4"}, 'run.weights="int4": must be one of int8, bfloat16, float32'),
        ({"run__width": 200}, "run.width=200: must not be above the model's max_position_embeddings, 192"),
        ({"run__speed": 3}, "run.speed=3: unknown key"),
        ({"run": None}, "run.steps is missing"),
        ({"optimizer__learning_rate": -1.0}, "optimizer.learning_rate=-1.0: must be a number"),
        ({"optimizer__betas": [0.9, 1.0]}, "optimizer.betas=[0.9, 1.0]: must be two numbers from 0 to below 1"),
        ({"optimizer__betas": 0.9}, "optimizer.betas=0.9: must be a list"),
        ({"optimizer__warmup_steps": 30}, "run.steps=30: must be above optimizer.warmup_steps, 30"),
        ({"optimizer__name": "sgd"}, 'optimizer.name="sgd": must be one of adamw, muon'),
        ({"optimizer__name": "muon"}, "optimizer.adam_learning_rate is missing"),
        ({"optimizer__adam_learning_rate": 0.1}, "optimizer.adam_learning_rate=0.1: unknown key"),
        ({"optimizer__final_fraction": 1.5}, "optimizer.final_fraction=1.5: must be a number from 0 to 1"),
        ({"objective__name": "nemotron"}, "doesn't train a fast_dllm_v2 model; fast_dllm_v2 is for fast_dllm_v2"),
        ({"objective__name": "next_token"}, "next_token for autoregressive families"),
        ({"objective__clean_seed": 1}, "objective.clean_seed=1: must be true or false"),
        ({"objective__diffusion_weight": 1.0}, "objective.diffusion_weight=1.0: unknown key"),
        ({"data__source": "web"}, 'data.source="web": must be one of tasks, tokens'),
        ({"data__examples_per_task": 0}, "data.examples_per_task=0: must be a whole number from 1"),
        ({"data": {**TOKENS, "holdout": 1}}, 'data.source="tokens": its ids are those of a model'),
        ({"data": {**TOKENS, "responses": "r.npz"}}, 'data.responses="r.npz": must be a list'),
        ({"data": {**TOKENS, "responses": [3]}}, "data.responses=[3]: must be a list of file names"),
        ({"data": {**TOKENS, "prompts": None}}, "data.prompts is missing"),
        ({"tokenizer__vocab_size": 100}, "tokenizer.vocab_size=100: must be a whole number from 260"),
        ({"model__vocab_size": 512}, "model.vocab_size=512: follows from the tokenizer"),
        ({"model__hidden_size": None}, "model: hidden_size is missing"),
        ({"model__colour": "red"}, 'colour="red": unknown key'),
        ({"model": ADAPTED}, "a model with init keeps its tokenizer"),
        ({"model": {"init": "m", "block_size": 32}, "tokenizer": None}, "block_size and mask_token_id go together"),
        ({"model": {"init": "m", "hidden_size": 3}, "tokenizer": None}, "model.hidden_size=3: unknown key"),
        ({"extra": {"a": 1}}, "extra"),
    ],
)
def test_a_fault_is_named(tmp_path, changes, said):
    path = write_recipe(tmp_path / "r.toml", **changes)
    with pytest.raises(InputError) as caught:
        read_recipe(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_all_faults_are_in_one_line(tmp_path):
    path = write_recipe(
        tmp_path / "r.toml", run__steps=0, optimizer__decay="none", model__hidden_size="wide", data=None
    )
    with pytest.raises(InputError) as caught:
        read_recipe(path)
    message = str(caught.value)
    assert "\n" not in message
    for key in ("run.steps=0", 'optimizer.decay="none"', 'hidden_size="wide"', "data.source is missing"):
        assert key in message


@pytest.mark.parametrize(("text", "said"), [("[run\n", "not valid TOML"), ("a = 1\na = 2\n", "not valid TOML")])
def test_what_is_no_toml(tmp_path, text, said):
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_recipe(path)


def test_absent_or_binary_file(tmp_path):
    with pytest.raises(InputError, match=r"absent\.toml: cannot be read"):
        read_recipe(tmp_path / "absent.toml")
    (tmp_path / "r.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not valid TOML"):
        read_recipe(tmp_path / "r.toml")


def test_data_folder_without_effect(tmp_path):
    with pytest.raises(InputError, match=r'has no effect with data\.source="tasks"'):
        read_recipe(write_recipe(tmp_path / "r.toml"), tmp_path)


def test_comments_are_no_change_but_values_are(tmp_path):
    path = write_recipe(tmp_path / "r.toml")
    recipe = read_recipe(path)
    same, other, fewer = (tmp_path / f"{name}.toml" for name in ("same", "other", "fewer"))
    same.write_text(f"# a comment\n{path.read_text()}")
    check_same(recipe.content, same)
    with pytest.raises(InputError, match=r"^run\.steps is 30, but 40 in .*other\.toml"):
        check_same(recipe.content, write_recipe(other, run__steps=40))
    with pytest.raises(InputError, match=r"^data\.seed is 0, but nothing in"):
        check_same(recipe.content, write_recipe(fewer, data__seed=None))


@pytest.mark.parametrize(("name", "family"), BUNDLED.items())
def test_bundled_recipes_of_small_models(name, family):
    recipe = read_recipe(CONFIGS / "recipes" / f"{name}.toml")
    assert isinstance(recipe.model, FreshModel)
    config = parse_config(recipe.model.config, name)
    assert config.family == family
    layer = (config.num_heads + config.num_kv_heads) * 2 * config.head_dim + 3 * config.intermediate_size
    parameters = (config.num_layers * layer + config.vocab_size) * config.hidden_size
    assert 4.5e6 < parameters < 6e6
    assert 14_000 <= recipe.loop.steps <= 18_000


def test_bundled_recipe_of_smollm2():
    recipe = read_recipe(CONFIGS / "recipes" / "smollm2-fdv2.toml")
    assert recipe.model == AdaptedModel("smollm2", 32, 16)
    assert isinstance(recipe.data, TokenData)
    assert len(recipe.data.responses) == 4
