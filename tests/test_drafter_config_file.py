"""A drafter's config.json: every published layout, every fault by name, and what is written is read again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from drafter_files import EVERYTHING, SETTINGS, TARGET
from hypothesis import given, settings
from hypothesis import strategies as st

from specdiff_jax.config import parse_config
from specdiff_jax.drafter_config import Conditioning, DraftAttention, DrafterConfig
from specdiff_jax.drafter_config_file import config_json, parse_drafter_config, read_drafter_config
from specdiff_jax.errors import InputError
from specdiff_jax.geometries import drafter_geometry, drafter_geometry_names

SOURCE = "folder/config.json"
ABSENT = object()
SECTION = SETTINGS["dflash_config"]
FULL, NEAR = "full_attention", "sliding_attention"


def changed(raw: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (raw | changes).items() if value is not ABSENT}


def parse(section: dict[str, Any] | None = None, **changes: Any) -> DrafterConfig:
    """The small drafter's settings, with changes of its section for DFlash and of the rest."""
    raw = changed(SETTINGS, dflash_config=changed(SECTION, **(section or {})))
    return parse_drafter_config(changed(raw, **changes), SOURCE)


def refused(section: dict[str, Any] | None = None, **changes: Any) -> str:
    with pytest.raises(InputError) as error:
        parse(section, **changes)
    assert str(error.value).startswith(f"{SOURCE}: ")
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(f"{SOURCE}: ")


def assert_written_again(config: DrafterConfig) -> None:
    assert parse_drafter_config(json.loads(json.dumps(config_json(config))), SOURCE) == config


def test_the_small_drafter() -> None:
    config = parse()
    assert (config.block_size, config.mask_token_id, config.target_layer_ids) == (8, 49, (0, 2, 5))
    assert (config.num_target_layers, config.conditioning, config.attention_sinks) == (6, "key_value", False)
    assert config.attentions == (DraftAttention(None, causal=False),) * 2
    assert (config.input_embedding_scale, config.output_multiplier, config.final_logit_softcapping) == (1.0, 1.0, None)
    expected = replace(TARGET, num_layers=2, intermediate_size=40)
    assert config.backbone == expected
    assert_written_again(config)
    assert_written_again(parse_drafter_config(EVERYTHING, SOURCE))


SPECFORGE = {
    "lfm2.5-1.2b-instruct-dflash": (2048, 8, 64, 16, (1, 4, 7, 10, 13), 16, 1e6, 65536),
    "qwen2.5-0.5b-dflash": (896, 5, 64, 151669, (1, 6, 11, 16, 21), 24, 1e6, 151936),
    "qwen3-4b-dflash": (2560, 5, 128, 151669, (1, 9, 17, 25, 33), 36, 1e6, 151936),
    "qwen3-8b-dflash": (4096, 5, 128, 151669, (1, 9, 17, 25, 33), 36, 1e6, 151936),
    "qwen3.5-4b-dflash": (2560, 5, 128, 248070, (1, 8, 15, 22, 29), 32, 1e7, 248320),
}


def test_every_specforge_config_is_covered(shared: Path) -> None:
    assert {path.stem for path in (shared / "fixtures" / "specforge").glob("*.json")} == set(SPECFORGE)


@pytest.mark.parametrize("name", SPECFORGE)
def test_specforge(name: str, shared: Path) -> None:
    config = read_drafter_config(shared / "fixtures" / "specforge" / f"{name}.json")
    sizes = (config.backbone.hidden_size, config.backbone.num_layers, config.backbone.head_dim)
    fusion = (config.mask_token_id, config.target_layer_ids, config.num_target_layers)
    assert (*sizes, *fusion, config.backbone.rotary.theta, config.backbone.vocab_size) == SPECFORGE[name]
    assert config.block_size == 16
    assert config.attentions == (DraftAttention(),) * config.backbone.num_layers
    assert_written_again(config)


def test_mimo(shared: Path) -> None:
    config = read_drafter_config(shared / "fixtures" / "dflash" / "MiMo-V2.5-Pro-FP4-DFlash.config.json")
    backbone = config.backbone
    assert (backbone.hidden_size, backbone.num_heads, backbone.num_kv_heads, backbone.head_dim) == (6144, 128, 8, 128)
    assert (config.block_size, config.target_layer_ids) == (8, (0, 15, 31, 47, 69))
    assert config.attentions == (DraftAttention(1024, causal=False),) * 5
    assert (config.attention_value_scale, config.attention_sinks) == (0.612, True)
    theirs = 1 / 10000.0 ** (np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(backbone.rotary.inverse_frequencies, theirs, rtol=1e-6)
    assert_written_again(config)


def test_dflash2_is_refused_by_its_modules(shared: Path) -> None:
    with pytest.raises(InputError, match=r"DFlash2DraftModel.*convolutions.*candidate selector") as error:
        read_drafter_config(shared / "fixtures" / "dflash" / "Qwen3.8-27B-DFlash2.config.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["block_size", "mask_token_id", "target_layer_ids", "num_target_layers"])
def test_settings_stand_at_either_level(key: str) -> None:
    value = SETTINGS.get(key, SECTION.get(key))
    assert parse({key: value}, **{key: ABSENT}) == parse()
    assert parse({key: ABSENT}, **{key: value}) == parse()
    assert parse({key: value}, **{key: value}) == parse()
    other = [1] if isinstance(value, list) else value - 1
    shown = json.dumps(value)
    assert refused({key: value}, **{key: other}) == (
        f"{key}={json.dumps(other)}: must be equal to dflash_config.{key}={shown}"
    )


def test_nested_layers() -> None:
    moved = ("hidden_size", "layer_types", "rope_theta", "num_hidden_layers")
    nested = {key: SETTINGS[key] for key in moved} | {"model_type": "qwen3_5_text", "dtype": "bfloat16"}
    absent = dict.fromkeys(moved, ABSENT)
    assert parse(text_config=nested, **absent, model_type="qwen3_5") == parse()
    assert parse(text_config=nested) == parse()
    message = "hidden_size=24: must be equal to text_config.hidden_size=32"
    assert refused(text_config=nested | {"hidden_size": 32}) == message


@pytest.mark.parametrize("layout", ["rope_parameters", "rope_scaling"])
def test_a_nested_theta_wins(layout: str) -> None:
    nested = {layout: {"rope_theta": 1e7, "rope_type": "default"}}
    for flat in (ABSENT, 1e6, 1e7):
        config = parse(rope_theta=flat, **nested)
        assert config.backbone.rotary.theta == 1e7
        assert config.backbone.rotary.inverse_frequencies == parse(rope_theta=1e7).backbone.rotary.inverse_frequencies
        assert_written_again(config)


def test_two_nested_thetas() -> None:
    sections = {"rope_parameters": {"rope_theta": 1e7}, "rope_scaling": {"rope_theta": 1e6}}
    assert "must be equal" in refused(**sections)
    assert refused(rope_theta=ABSENT) == "rope_theta is missing"


@pytest.mark.parametrize(
    "rule",
    [
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_slow": 2.0},
        {"type": "linear", "factor": 2.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda rule: rule.get("rope_type", "linear"),
)
def test_rotary_rules_are_those_of_models(rule: dict[str, Any]) -> None:
    config = parse(rope_scaling=rule)
    model = {"architectures": ["Qwen3ForCausalLM"], "intermediate_size": 32, "num_hidden_layers": 2}
    sizes = {key: value for key, value in config_json(parse()).items() if key in SIZE_KEYS}
    assert config.backbone.rotary == parse_config({**sizes, **model, "rope_scaling": rule}, SOURCE).rotary
    assert config.backbone.rotary != parse().backbone.rotary
    assert_written_again(config)
    assert_written_again(parse(rope_scaling=rule, partial_rotary_factor=0.5))


SIZE_KEYS = {
    "head_dim",
    "hidden_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_theta",
    "vocab_size",
}


def test_a_part_of_the_head_is_rotated() -> None:
    flat, nested = parse(partial_rotary_factor=0.5), parse(rope_parameters={"partial_rotary_factor": 0.5})
    assert flat == nested
    np.testing.assert_allclose(flat.backbone.rotary.inverse_frequencies, [1, 1e-2], rtol=1e-6)
    assert_written_again(flat)
    for factor in (0.4, 0.01, 1.5, 0, "half", 0.625):
        assert "partial_rotary_factor" in refused(partial_rotary_factor=factor)
    both = refused(partial_rotary_factor=0.5, rope_parameters={"partial_rotary_factor": 0.25})
    assert both == "partial_rotary_factor=0.5: must be equal to the other partial_rotary_factor"
    with pytest.raises(InputError, match=r"partial_rotary_factor=0\.5: only rotating the whole head"):
        parse_config({"architectures": ["Qwen3ForCausalLM"], "partial_rotary_factor": 0.5}, SOURCE)


def sees(*attentions: tuple[int | None, bool]) -> tuple[DraftAttention, ...]:
    return tuple(DraftAttention(*pair) for pair in attentions)


@pytest.mark.parametrize(
    ("section", "changes", "expected"),
    [
        ({}, {"layer_types": None}, sees((None, False), (None, False))),
        ({}, {"layer_types": [FULL, FULL], "sliding_window": 9}, sees((None, False), (None, False))),
        ({}, {"layer_types": [NEAR, FULL], "sliding_window": 9}, sees((9, True), (None, False))),
        ({}, {"layer_types": [NEAR, FULL], "sliding_window": 9, "is_causal": True}, sees((9, True), (None, True))),
        ({}, {"layer_types": [NEAR, NEAR], "sliding_window": 9, "is_causal": False}, sees((9, False), (9, False))),
        ({"use_swa": False, "swa_window_size": 7}, {}, sees((None, False), (None, False))),
        ({"causal": True}, {}, sees((None, True), (None, True))),
        ({"causal": False}, {"layer_types": [NEAR, FULL], "sliding_window": 9}, sees((9, False), (None, False))),
        ({"causal": True}, {"is_causal": True}, sees((None, True), (None, True))),
        ({"use_swa": True, "swa_window_size": 7}, {"layer_types": None}, sees((7, False), (7, False))),
        (
            {"use_swa": True},
            {"layer_types": None, "sliding_window": 7, "is_causal": True},
            sees((7, True), (7, True)),
        ),
    ],
)
def test_what_layers_see(
    section: dict[str, Any], changes: dict[str, Any], expected: tuple[DraftAttention, ...]
) -> None:
    for switch in (True, ABSENT) if changes.get("layer_types") else (ABSENT,):
        config = parse(section, **changes, use_sliding_window=switch)
        assert config.attentions == expected
        assert_written_again(config)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ({}, {"layer_types": [NEAR, FULL]}, "sliding_window is missing"),
        ({}, {"layer_types": [NEAR, FULL], "sliding_window": 0}, "sliding_window=0: must be a whole number"),
        ({}, {"layer_types": [NEAR], "sliding_window": 4}, "must have one entry a layer, but there are 1"),
        ({}, {"layer_types": ["chunked", FULL]}, "each must be full_attention or sliding_attention"),
        (
            {},
            {"layer_types": [NEAR, FULL], "sliding_window": 4, "use_sliding_window": False},
            "contradicts layer_types",
        ),
        ({}, {"layer_types": None, "sliding_window": 4, "use_sliding_window": True}, "needs layer_types"),
        ({"causal": True}, {"is_causal": False}, "is_causal=false: must be equal to dflash_config.causal"),
        ({"use_swa": True, "swa_window_size": 7}, {}, "contradicts use_swa"),
        ({"use_swa": True}, {"layer_types": None}, "sliding_window is missing"),
        (
            {"use_swa": True, "swa_window_size": 7},
            {"layer_types": None, "sliding_window": 8},
            "sliding_window=8: must be equal to swa_window_size, 7",
        ),
    ],
)
def test_windows_that_contradict(section: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    assert message in refused(section, **({"use_sliding_window": ABSENT} | changes))


@pytest.mark.parametrize(("layers", "expected"), [(1, (18,)), (3, (1, 17, 33)), (5, (1, 9, 17, 25, 33))])
def test_default_layers(layers: int, expected: tuple[int, ...]) -> None:
    changes = {"num_hidden_layers": layers, "layer_types": None, "num_target_layers": 36}
    assert parse({"target_layer_ids": ABSENT}, **changes).target_layer_ids == expected


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ({"mask_token_id": ABSENT}, {}, "mask_token_id is missing"),
        ({"mask_token_id": 50}, {}, "dflash_config.mask_token_id=50: is not in the vocabulary of 50"),
        ({"mask_token_id": -1}, {}, "dflash_config.mask_token_id=-1: must be a token id"),
        ({"target_layer_ids": ABSENT}, {"num_target_layers": ABSENT}, "target_layer_ids is missing"),
        ({"target_layer_ids": ABSENT}, {"num_target_layers": 2}, "target_layer_ids is missing"),
        ({"target_layer_ids": []}, {}, "must hold different indices"),
        ({"target_layer_ids": [1, 6]}, {}, "different indices of the target's layers, each below 6"),
        ({"target_layer_ids": [1, 1]}, {}, "must hold different indices"),
        ({"target_layer_ids": [-1]}, {}, "must hold different indices"),
        ({"target_layer_ids": [True]}, {}, "must hold different indices"),
        ({"target_layer_ids": 3}, {}, "dflash_config.target_layer_ids=3: must be a list"),
        ({}, {"block_size": 0}, "block_size=0: must be a whole number from 2"),
        ({}, {"block_size": 1}, "block_size=1: must be a whole number from 2"),
        ({}, {"block_size": 100_000}, "block_size=100000: must be a whole number from 2 to"),
        ({}, {"block_size": ABSENT}, "block_size is missing"),
        ({"selector_rank": 4}, {}, "dflash_config.selector_rank=4: unknown key"),
        ({}, {"selector_rank": 4}, "selector_rank=4: unknown key"),
        ({"use_aux_hidden_state": False}, {}, "only drafters that read their target's features"),
        ({"conditioning": "both"}, {}, "must be one of key_value, input, none"),
        ({}, {"v_head_dim": 4}, "v_head_dim=4: must be equal to head_dim, 8"),
        ({}, {"model_type": "llama"}, "only drafters of Qwen3's form"),
        ({}, {"hidden_act": "gelu"}, "only silu is supported"),
        ({}, {"quantization_config": {"quant_method": "fp8"}}, "quantised Hugging Face checkpoints"),
        ({}, {"num_attention_heads": 5}, "query heads must be a multiple"),
        ({}, {"dflash_config": 3}, "dflash_config=3: must be an object"),
        ({}, {"architectures": ["Qwen3ForCausalLM"]}, "is no drafter (DFlashDraftModel): load a model as --model"),
        ({}, {"architectures": "DFlashDraftModel"}, "is no drafter"),
    ],
)
def test_faults(section: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    assert message in refused(section, **changes)


def test_all_faults_stand_in_one_line() -> None:
    line = refused({"mask_token_id": ABSENT, "nonsense": 1}, block_size=0, hidden_size="wide", rope_theta=ABSENT)
    assert [line.count(key) for key in ("mask_token_id", "nonsense", "block_size", "hidden_size", "rope_theta")] == [
        1
    ] * 5


def test_the_rare_settings() -> None:
    section = {
        "input_embedding_scale": 3.5,
        "output_multiplier": 0.25,
        "final_logit_softcapping": 30,
        "attention_value_scale": 0.5,
        "attention_sink_bias": True,
        "use_aux_hidden_state": True,
        "mask_token": "<|MASK|>",
    }
    config = parse(section, attention_bias=True, v_head_dim=8, architectures=ABSENT)
    assert (config.input_embedding_scale, config.output_multiplier, config.final_logit_softcapping) == (3.5, 0.25, 30.0)
    assert (config.attention_value_scale, config.attention_sinks) == (0.5, True)
    assert (config.backbone.qkv_bias, config.backbone.output_bias, config.backbone.mlp_bias) == (True, True, False)
    assert_written_again(config)
    for conditioning in get_args(Conditioning):
        config = parse({"conditioning": conditioning})
        assert config.conditioning == conditioning
        assert_written_again(config)


def test_what_no_file_says_is_none() -> None:
    config = parse(vocab_size=ABSENT, num_target_layers=ABSENT)
    assert (config.backbone.vocab_size, config.num_target_layers) == (0, None)
    assert_written_again(config)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attentions": sees((9, True), (7, True))}, "attentions"),
        ({"attentions": sees((None, True), (None, False))}, "attentions"),
        ({"backbone": replace(TARGET, num_layers=2, tie_embeddings=True)}, "tie_embeddings"),
        ({"backbone": replace(TARGET, num_layers=2, qkv_bias=True)}, "output_bias"),
    ],
)
def test_what_the_layout_cannot_say(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=f"can't say these of its settings: {named}$"):
        config_json(replace(parse(), **change))


def test_a_written_config_has_the_published_keys(shared: Path) -> None:
    published = json.loads((shared / "fixtures" / "specforge" / "qwen3-8b-dflash.json").read_text())
    written = config_json(parse_drafter_config(published, SOURCE))
    assert written == {key: published[key] for key in written}
    unread = {
        "auto_map",
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "use_cache",
    }
    empty = {"max_window_layers", "rope_scaling", "sliding_window"}
    assert set(published) - set(written) == unread | empty


def test_geometries(shared: Path) -> None:
    assert drafter_geometry_names() == ("qwen3-4b-b16", "qwen3-8b-b16")
    for size in ("4b", "8b"):
        published = read_drafter_config(shared / "fixtures" / "specforge" / f"qwen3-{size}-dflash.json")
        assert drafter_geometry(f"qwen3-{size}-b16") == published
    with pytest.raises(InputError, match=r"no geometry 'qwen3-8b'; there are qwen3-4b-b16, qwen3-8b-b16"):
        drafter_geometry("qwen3-8b")


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2**40),
    st.floats(allow_nan=True),
    st.text(max_size=4),
    st.lists(st.integers(-2, 9), max_size=4),
    st.dictionaries(st.sampled_from(["rope_type", "factor", "rope_theta"]), st.integers(-1, 9), max_size=2),
)
KEYS = [*EVERYTHING, "rope_parameters", "partial_rotary_factor", "is_causal", "text_config", "v_head_dim", "new"]
SECTION_KEYS = [
    *EVERYTHING["dflash_config"],
    "block_size",
    "causal",
    "use_swa",
    "swa_window_size",
    "conditioning",
    "new",
]


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=2),
    st.dictionaries(st.sampled_from(SECTION_KEYS), ANYTHING, max_size=2),
)
def test_any_file_is_read_and_written_or_refused_in_one_line(top: dict[str, Any], inner: dict[str, Any]) -> None:
    raw = {**EVERYTHING, "dflash_config": EVERYTHING["dflash_config"] | inner} | top
    read = read_or_refused(raw)
    if isinstance(read, str):
        assert read.startswith(SOURCE)
        assert "\n" not in read
    else:
        assert_written_again(read)


def read_or_refused(raw: dict[str, Any]) -> DrafterConfig | str:
    try:
        return parse_drafter_config(raw, SOURCE)
    except InputError as error:
        return str(error)
