"""Recipes of drafters: what is read, and what becomes of it for a target."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_decoder import small_config
from tiny_drafter_recipe import write_drafter_recipe

from specdiff_jax.config_files import CONFIGS
from specdiff_jax.drafter_config import DraftAttention
from specdiff_jax.errors import InputError
from specdiff_jax.loading import load
from specdiff_jax.train.drafter_recipe import drafter_config, read_drafter_recipe, spread_layers
from specdiff_jax.train.recipe import check_same


def bundled(name: str) -> Path:
    return CONFIGS / "recipes" / f"{name}.toml"


def test_what_is_read(tmp_path: Path) -> None:
    recipe = read_drafter_recipe(write_drafter_recipe(tmp_path / "r.toml", objective__anchors=5), Path("/d"))
    assert (recipe.model.target, recipe.model.target_layer_ids) == ("target", (0, 1))
    assert recipe.data.prompts == Path("/d/prompts.npz")
    assert (recipe.objective.anchors, recipe.objective.d_pace, recipe.objective.fixed_anchors) == (5, None, False)
    assert recipe.objective.gamma == pytest.approx(4 / 2.3)
    assert (recipe.features, recipe.tau.prompts, recipe.text) == ("online", 0, (tmp_path / "r.toml").read_text())


def test_sizes_are_the_targets_unless_they_are_named(tmp_path: Path) -> None:
    target = small_config(num_layers=9)
    changes = {"model__target_layer_ids": None, "model__features": 3}
    recipe = read_drafter_recipe(write_drafter_recipe(tmp_path / "r.toml", **changes))
    config = drafter_config(recipe.model, target, "r")
    backbone = config.backbone
    assert (backbone.num_heads, backbone.num_kv_heads, backbone.head_dim) == (4, 2, 8)
    assert (backbone.hidden_size, backbone.intermediate_size, backbone.vocab_size) == (24, 36, 40)
    assert (backbone.num_layers, backbone.qk_norm, backbone.rotary.theta) == (2, True, 100.0)
    assert (config.target_layer_ids, config.num_target_layers) == ((1, 4, 6), 9)
    assert config.attentions == (DraftAttention(),) * 2
    named = {"intermediate_size": 50, "num_attention_heads": 6, "sliding_window": 7, "conditioning": "input"}
    changes |= {f"model__{key}": value for key, value in named.items()}
    recipe = read_drafter_recipe(write_drafter_recipe(tmp_path / "r.toml", **changes))
    config = drafter_config(recipe.model, target, "r")
    assert (config.backbone.intermediate_size, config.backbone.num_heads) == (50, 6)
    assert config.attentions == (DraftAttention(7, causal=True),) * 2
    assert config.conditioning == "input"


def test_published_spreads_of_layers() -> None:
    published = {
        24: [1, 6, 11, 16, 21],
        32: [1, 8, 15, 22, 29],
        36: [1, 9, 17, 25, 33],
        40: [1, 10, 19, 28, 37],
        48: [1, 12, 23, 34, 45],
        64: [1, 16, 31, 46, 61],
    }
    assert {depth: spread_layers(5, depth) for depth in published} == published
    assert spread_layers(1, 6) == [3]
    with pytest.raises(InputError, match=r"model\.features=5: the target has 3 layers"):
        spread_layers(5, 6)


def test_changes_are_part_of_the_recipe(tmp_path: Path) -> None:
    path = write_drafter_recipe(tmp_path / "r.toml")
    changes = ("model.layers=3", "objective.fixed_anchors=true", 'model.target=übersetzer "x"', "run.steps = 40")
    recipe = read_drafter_recipe(path, None, changes)
    assert (recipe.model.layers, recipe.objective.fixed_anchors, recipe.loop.steps) == (3, True, 40)
    assert recipe.model.target == 'übersetzer "x"'
    (tmp_path / "kept.toml").write_text(recipe.text, encoding="utf-8")
    check_same(recipe.content, tmp_path / "kept.toml")
    with pytest.raises(InputError, match=r"^model\.target is .*kept\.toml: resume with the recipe"):
        check_same(read_drafter_recipe(path).content, tmp_path / "kept.toml")


def test_all_faults_are_in_one_line(tmp_path: Path) -> None:
    path = write_drafter_recipe(tmp_path / "r.toml", model__target=None, model__mask_token_id=None, run__features="no")
    with pytest.raises(InputError) as caught:
        read_drafter_recipe(path)
    for said in ("model.target is missing", "model.mask_token_id is missing", 'run.features="no": must be one of'):
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model__block_size": 65}, r"model\.block_size=65: must not be above run\.width, 64"),
        ({"model__layers": 2**31 - 1}, r"model\.layers=2147483647: must be a whole number from 1 to 1000"),
    ],
)
def test_sizes_have_limits(tmp_path: Path, changes: dict[str, int], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        read_drafter_recipe(write_drafter_recipe(tmp_path / "r.toml", **changes))


def test_recipe_of_pico_dflash() -> None:
    recipe = read_drafter_recipe(bundled("pico-dflash"))
    target = load(recipe.model.target)
    config = drafter_config(recipe.model, target.config, "pico-dflash")
    assert (config.block_size, config.target_layer_ids, recipe.objective.gamma) == (16, (1, 2, 3), 7.0)
    assert target.tokenizer is not None
    assert target.tokenizer.token_id("<|mask|>") == config.mask_token_id
    assert recipe.optimizer.warmup_steps == 400  # of 6,000: as the bundled drafter was made


def test_recipe_of_smollm2_dflash(smollm2: str) -> None:
    recipe = read_drafter_recipe(bundled("smollm2-dflash"))
    target = load(smollm2, dtype="bfloat16")
    config = drafter_config(recipe.model, target.config, "smollm2-dflash")
    assert (recipe.model.target, len(recipe.data.responses)) == ("smollm2", 4)
    assert config.target_layer_ids == (1, 8, 14, 20, 27)
    backbone = config.backbone
    assert (backbone.num_heads, backbone.num_kv_heads, backbone.head_dim, backbone.num_layers) == (9, 3, 64, 5)
    assert recipe.optimizer.warmup_steps == 0.04 * recipe.loop.steps
