"""The config reader, against Transformers' own config classes and published files."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdiff_jax.config import ModelConfig, MoEConfig, parse_config, read_config, read_stop_ids
from specdiff_jax.errors import InputError
from specdiff_jax.geometries import geometry, geometry_names
from specdiff_jax.loading import abstract_decoder

SOURCE = "folder/config.json"
ABSENT = object()

# The keys that published files of each family have, at small sizes.
COMMON: dict[str, Any] = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.53.1",
    "use_cache": True,
    "vocab_size": 200,
}
WINDOW = {"max_window_layers": 3, "sliding_window": None, "use_sliding_window": False}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "pretraining_tp": 1,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **WINDOW, "sliding_window": 4096},
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 32,
        **WINDOW,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 32,
        "mlp_only_layers": [],
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        **WINDOW,
    },
    "fast_dllm_v2": {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "model_type": "Fast_dLLM_Qwen",
        "bd_size": 32,
        "conplemenrary_mask": True,
        "mask_token_id": 199,
        **WINDOW,
    },
    "nemotron_labs_diffusion": {
        "architectures": ["NemotronLabsDiffusionModel"],
        "model_type": "nemotron_labs_diffusion",
        "attention_bias": False,
        "block_size": 32,
        "head_dim": 32,
        "mask_token_id": 100,
        "mlp_bias": False,
        "rope_theta": ABSENT,
        "rope_scaling": ABSENT,
        "rope_parameters": {
            "factor": 0.25,
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 512,
            "rope_theta": 1000000.0,
            "rope_type": "yarn",
        },
        "sliding_window": None,
    },
}


def changed(config: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The config with other values, and without the keys that are ABSENT."""
    return {key: value for key, value in (config | change).items() if value is not ABSENT}


def raw(family: str, **change: Any) -> dict[str, Any]:
    return copy.deepcopy(changed(changed(COMMON, FAMILIES[family]), change))


def parse(family: str, **change: Any) -> ModelConfig:
    return parse_config(raw(family, **change), SOURCE)


def fault(config: dict[str, Any]) -> str:
    """The message that the config is refused with: one line, which starts with the file."""
    with pytest.raises(InputError) as error:
        parse_config(config, SOURCE)
    message = str(error.value)
    assert message.startswith(f"{SOURCE}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes(family: str) -> None:
    config = parse(family)
    assert config.family == family
    sizes = (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers)
    assert sizes == (200, 64, 96, 3)
    assert (config.num_heads, config.num_kv_heads, config.group_size) == (4, 2, 2)
    assert config.head_dim == FAMILIES[family].get("head_dim", 16)
    assert len(config.rotary.inverse_frequencies) == config.head_dim // 2
    assert (config.rms_norm_eps, config.max_position_embeddings) == (1e-6, 128)
    assert (config.bos_token_id, config.eos_token_ids, config.pad_token_id) == (1, (2,), None)
    assert (config.moe is not None) == (family == "qwen3_moe")
    assert (config.block_size is not None) == (family in ("fast_dllm_v2", "nemotron_labs_diffusion"))


@pytest.mark.parametrize("family", FAMILIES)
def test_model_type_alone_decides_where_there_is_no_architecture(family: str) -> None:
    assert parse(family, architectures=ABSENT) == parse(family, model_type=ABSENT) == parse(family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings(family: str, tied: bool) -> None:
    assert parse(family, tie_word_embeddings=tied).tie_embeddings is tied
    assert parse(family, tie_word_embeddings=ABSENT).tie_embeddings is False


def test_llama_defaults() -> None:
    old = {"num_key_value_heads": ABSENT, "attention_bias": ABSENT, "mlp_bias": ABSENT, "rope_theta": ABSENT}
    config = parse("llama", **old, bos_token_id=ABSENT, eos_token_id=ABSENT)
    assert config == parse("llama", num_key_value_heads=4, rope_theta=10000.0, bos_token_id=1, eos_token_id=2)


def test_head_dim_is_taken_as_named() -> None:
    assert parse("llama", head_dim=48).head_dim == 48
    assert parse("llama", head_dim=None).head_dim == 64 // 4
    assert parse("qwen2", hidden_size=65, head_dim=10).head_dim == 10
    assert parse("qwen3", head_dim=ABSENT).head_dim == 128, "the default of Qwen3Config"


@pytest.mark.parametrize(
    ("ids", "expected"),
    [(2, (2,)), ([7, 2, 7], (7, 2)), ([], ()), (None, ()), (ABSENT, ())],
)
def test_stop_ids(ids: Any, expected: tuple[int, ...]) -> None:
    config = parse("qwen3", eos_token_id=ids)
    assert config.eos_token_ids == expected
    assert read_stop_ids({}, config) == expected
    assert read_stop_ids({"eos_token_id": None, "temperature": 0.7}, config) == expected
    assert read_stop_ids({"eos_token_id": [9, 2]}, config) == tuple(dict.fromkeys((9, 2, *expected)))
    assert read_stop_ids({"eos_token_id": 9}, config) == (9, *expected)


@pytest.mark.parametrize("ids", ["2", True, -1, 2.0, [2, "x"], 200, [[2]]])
def test_wrong_stop_ids_are_named(ids: Any) -> None:
    with pytest.raises(InputError, match=r"^generation_config\.json: eos_token_id="):
        read_stop_ids({"eos_token_id": ids}, parse("qwen3"))


def test_sparse_layers() -> None:
    def layers(**change: Any) -> tuple[int, ...]:
        moe = parse("qwen3_moe", **change).moe
        assert moe is not None
        return moe.sparse_layers

    assert layers() == layers(mlp_only_layers=None, decoder_sparse_step=ABSENT) == (0, 1, 2)
    assert layers(mlp_only_layers=[0, 2]) == (1,)
    assert layers(decoder_sparse_step=2, num_hidden_layers=6) == (1, 3, 5)
    assert layers(decoder_sparse_step=2, num_hidden_layers=6, mlp_only_layers=[3]) == (1, 5)


def test_experts_under_either_name() -> None:
    config = parse("qwen3_moe", num_experts=ABSENT, num_local_experts=8)
    assert config == parse("qwen3_moe", num_local_experts=8) == parse("qwen3_moe")
    assert config.moe == MoEConfig(8, 2, 24, True, (0, 1, 2))


def test_mask_of_fast_dllm() -> None:
    assert parse("fast_dllm_v2").mask_token_id == 199
    assert parse("fast_dllm_v2", mask_token_id=ABSENT, vocab_size=152064).mask_token_id == 151665
    message = fault(raw("fast_dllm_v2", mask_token_id=ABSENT))
    assert message == f"{SOURCE}: vocab_size=200: mask_token_id 151665 is not in the vocabulary"


@pytest.mark.parametrize(
    ("family", "change"),
    [
        # as published with Llama 3.2, SmolLM2, Qwen2.5 and Qwen3
        ("llama", {"eos_token_id": [2, 3, 4], "head_dim": 16, "_name_or_path": "x", "dtype": "float32"}),
        ("llama", {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"a": {}}}),
        ("llama", {"unk_token_id": 0, "quantization_config": None, "sliding_window": None}),
        ("qwen2", {"use_mrope": False, "sliding_window": 131072, "max_window_layers": 28}),
        ("qwen3", {"layer_types": ["full_attention"] * 3, "auto_map": {"AutoModel": "a.b"}}),
        ("fast_dllm_v2", {"block_size": 32}),
        ("nemotron_labs_diffusion", {"dlm_paradigm": "bidirectional", "ar_loss_weight": 1.0, "dlm_loss_weight": None}),
    ],
)
def test_keys_that_change_nothing(family: str, change: dict[str, Any]) -> None:
    changes_ids = {"eos_token_id": change["eos_token_id"]} if "eos_token_id" in change else {}
    assert parse(family, **change) == parse(family, **changes_ids)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hidden_size", ABSENT, "hidden_size is missing"),
        ("vocab_size", None, "vocab_size is missing"),
        ("num_hidden_layers", 0, "num_hidden_layers=0: must be a whole number"),
        ("num_hidden_layers", 10**9, "num_hidden_layers=1000000000: must be a whole number from 1 to 1000"),
        ("num_attention_heads", -4, "num_attention_heads=-4: must be a whole number"),
        ("intermediate_size", "96", 'intermediate_size="96": must be a whole number'),
        ("hidden_size", True, "hidden_size=true: must be a whole number"),
        ("vocab_size", 200.0, "vocab_size=200.0: must be a whole number"),
        ("max_position_embeddings", [128], "max_position_embeddings=[128]: must be a whole number"),
        ("num_key_value_heads", 3, "num_attention_heads=4, num_key_value_heads=3: query heads must be a multiple"),
        ("head_dim", 15, "head_dim=15: must be even"),
        ("head_dim", 10**9, "head_dim=1000000000: must be a whole number"),
        ("rms_norm_eps", ABSENT, "rms_norm_eps is missing"),
        ("rms_norm_eps", 0, "rms_norm_eps=0: must be a number"),
        ("rms_norm_eps", "1e-6", 'rms_norm_eps="1e-6": must be a number'),
        ("rms_norm_eps", float("inf"), "rms_norm_eps=Infinity: must be a number"),
        ("tie_word_embeddings", "true", 'tie_word_embeddings="true": must be true or false'),
        ("tie_word_embeddings", 1, "tie_word_embeddings=1: must be true or false"),
        ("eos_token_id", 200, "eos_token_id=200, vocab_size=200: eos_token_id 200 is not in the vocabulary"),
        ("eos_token_id", [2, -1], "eos_token_id=[2, -1]: must be a token id"),
        ("bos_token_id", "1", 'bos_token_id="1": must be a token id'),
        ("pad_token_id", 300, "pad_token_id=300, vocab_size=200: pad_token_id 300"),
        ("hidden_act", "gelu", 'hidden_act="gelu": only silu is supported'),
        ("use_sliding_window", True, "use_sliding_window=true: sliding-window attention is not supported"),
        ("layer_types", ["full_attention", "sliding_attention", "full_attention"], "only full_attention"),
        ("layer_types", ["full_attention"] * 2, "num_hidden_layers=3: must have one entry a layer, but there are 2"),
        ("layer_types", "full_attention", 'layer_types="full_attention": must be a list'),
        ("partial_rotary_factor", 0.5, "partial_rotary_factor=0.5: "),
        ("quantization_config", {"quant_method": "awq"}, 'quantization_config={"quant_method": "awq"}: quantised'),
        ("quantization", {"bits": 4}, 'quantization={"bits": 4}: quantised'),
        ("is_encoder_decoder", True, "is_encoder_decoder=true: "),
        ("two\nlines", 1, r"two\nlines=1: unknown key"),
        ("residual_multiplier", 0.22, "residual_multiplier=0.22: unknown key"),
        ("model_type", "gemma", 'model_type="gemma": contradicts architectures='),
        ("architectures", ["MistralForCausalLM"], 'architectures=["MistralForCausalLM"]: not supported (supported: '),
        ("architectures", [], "architectures=[]: not supported (supported: LlamaForCausalLM, Qwen2ForCausalLM"),
        ("architectures", "LlamaForCausalLM", 'architectures="LlamaForCausalLM": not supported'),
    ],
)
def test_faults_are_named(family: str, key: str, value: Any, expected: str) -> None:
    assert expected in fault(raw(family, **{key: value}))


@pytest.mark.parametrize(
    ("family", "change", "expected"),
    [
        ("llama", {"hidden_size": 66}, "hidden_size=66, num_attention_heads=4: head_dim is missing"),
        ("llama", {"hidden_size": 60}, "hidden_size=60, num_attention_heads=4: head_dim is missing"),
        ("llama", {"sliding_window": 4096}, "sliding_window=4096: sliding-window attention is not supported"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved=true: "),
        ("llama", {"mlp_bias": "no"}, 'mlp_bias="no": must be true or false'),
        ("llama", {"num_experts": 8}, "num_experts=8: unknown key"),
        ("llama", {"rope_theta": "10000"}, 'rope_theta="10000": must be a number'),
        ("qwen2", {"num_key_value_heads": ABSENT}, "num_key_value_heads is missing"),
        ("qwen2", {"rope_theta": ABSENT}, "rope_theta is missing"),
        ("qwen2", {"attention_bias": False}, "attention_bias=false: unknown key"),
        ("qwen3", {"mlp_bias": True}, "mlp_bias=true: unknown key"),
        ("qwen3_moe", {"num_experts": ABSENT}, "num_experts is missing"),
        ("qwen3_moe", {"num_local_experts": 4}, "num_experts=8, num_local_experts=4: must be equal"),
        ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok=9, num_experts=8: a token can't go to more"),
        ("qwen3_moe", {"moe_intermediate_size": ABSENT}, "moe_intermediate_size is missing"),
        ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob=1: must be true or false"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step=0: must be a whole number"),
        ("qwen3_moe", {"mlp_only_layers": [3]}, "mlp_only_layers=[3]: must hold indices of the 3 layers"),
        ("qwen3_moe", {"mlp_only_layers": [True]}, "mlp_only_layers=[true]: must hold indices"),
        ("fast_dllm_v2", {"bd_size": ABSENT}, "bd_size is missing"),
        ("fast_dllm_v2", {"block_size": 16}, "bd_size=32, block_size=16: must be equal"),
        ("fast_dllm_v2", {"mask_token_id": 200}, "mask_token_id=200, vocab_size=200: "),
        ("nemotron_labs_diffusion", {"head_dim": ABSENT}, "head_dim is missing"),
        ("nemotron_labs_diffusion", {"block_size": ABSENT}, "block_size is missing"),
        ("nemotron_labs_diffusion", {"mask_token_id": ABSENT}, "mask_token_id is missing"),
        ("nemotron_labs_diffusion", {"mask_token_id": -1}, "mask_token_id=-1: must be a token id"),
        ("nemotron_labs_diffusion", {"attention_bias": True}, "attention_bias=true: biases are not supported"),
        ("nemotron_labs_diffusion", {"mlp_bias": True}, "mlp_bias=true: biases are not supported"),
        ("nemotron_labs_diffusion", {"sliding_window": 4096}, "sliding_window=4096: sliding-window"),
        ("nemotron_labs_diffusion", {"architectures": ABSENT, "model_type": ABSENT}, "architectures is missing"),
    ],
)
def test_faults_of_a_family_are_named(family: str, change: dict[str, Any], expected: str) -> None:
    assert expected in fault(raw(family, **change))


def test_all_faults_are_in_one_error() -> None:
    change = {"hidden_size": "x", "num_key_value_heads": 3, "vocab_size": ABSENT, "hidden_act": "relu", "scale": 2}
    message = fault(raw("qwen3", **change, rope_scaling={"type": "dynamic", "factor": 2.0}))
    assert message.count(";") == 5
    for key in ("hidden_size=", "num_key_value_heads=3", "vocab_size is missing", "hidden_act=", "scale=2", "dynamic"):
        assert key in message


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 200) | st.floats() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=4,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_broken_config_is_refused_or_read(data: st.DataObject) -> None:
    config = raw(data.draw(st.sampled_from(sorted(FAMILIES))))
    for _ in range(data.draw(st.integers(1, 3))):
        nested = config.get("rope_parameters")
        place = nested if isinstance(nested, dict) and data.draw(st.booleans()) else config
        key = data.draw(st.sampled_from(sorted(place)) if place else st.just("rope_type"))
        if data.draw(st.booleans()):
            place[key] = data.draw(JSON_VALUES)
        else:
            place.pop(key, None)
    message = ""
    try:
        accepted = parse_config(config, SOURCE)
    except InputError as error:
        message = str(error)
    else:
        assert len(accepted.rotary.inverse_frequencies) * 2 == accepted.head_dim
    assert message == "" or message.startswith(f"{SOURCE}: ")
    assert "\n" not in message


def test_read_config(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(raw("qwen3")))
    assert read_config(file) == read_config(tmp_path) == parse("qwen3")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "must hold a JSON object"),
        ('{"vocab_size": 1, "vocab_size": 2}', 'key "vocab_size" stands twice'),
        (b"\xff\xfe", "not valid JSON"),
        ("{}", "architectures is missing"),
    ],
)
def test_broken_files_are_named(content: str | bytes, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as error:
        read_config(tmp_path)
    assert str(error.value).startswith(f"{file}: ")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["config.json", "x" * 300])
def test_missing_files_are_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r": cannot be read \((No such file|File name too long)"):
        read_config(tmp_path / name)


def test_published_fast_dllm_v2(shared: Path) -> None:
    folder = shared / "fixtures" / "fast_dllm_v2_7b"
    config = read_config(folder)
    sizes = (config.family, config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads)
    assert sizes == ("fast_dllm_v2", 3584, 28, 28, 4)
    assert (config.head_dim, config.block_size, config.mask_token_id) == (128, 32, 151665)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, False, False)
    assert (config.rotary.kind, config.rotary.theta) == ("default", 1e6)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert read_stop_ids(generation, config) == (151645, 151643)


@pytest.mark.parametrize(("name", "layers", "eos", "limit"), [("3B-Base", 26, 2, 4096), ("8B", 34, 11, 262144)])
def test_published_nemotron(shared: Path, name: str, layers: int, eos: int, limit: int) -> None:
    config = read_config(shared / "fixtures" / "nemotron" / f"Nemotron-Labs-Diffusion-{name}.config.json")
    assert (config.family, config.num_layers, config.head_dim) == ("nemotron_labs_diffusion", layers, 128)
    assert (config.eos_token_ids, config.mask_token_id, config.block_size) == ((eos,), 100, 32)
    assert config.max_position_embeddings == limit
    rotary = config.rotary
    assert (rotary.kind, rotary.attention_factor) == ("yarn", 1.0)
    assert (rotary.query_scale_beta, rotary.original_max_position) == (0.1, 16384)
    if name == "8B":
        assert rotary == geometry("nld-3b").rotary


def test_geometries() -> None:
    expected = {
        "fdv2-1.5b": ("fast_dllm_v2", 1536, 28, 12, 2, 128, True),
        "fdv2-7b": ("fast_dllm_v2", 3584, 28, 28, 4, 128, False),
        "nld-14b": ("nemotron_labs_diffusion", 5120, 40, 32, 8, 128, False),
        "nld-3b": ("nemotron_labs_diffusion", 3072, 26, 32, 8, 128, False),
        "nld-8b": ("nemotron_labs_diffusion", 4096, 34, 32, 8, 128, False),
        "qwen3-4b": ("qwen3", 2560, 36, 32, 8, 128, True),
        "qwen3-8b": ("qwen3", 4096, 36, 32, 8, 128, False),
        "smollm2-135m": ("llama", 576, 30, 9, 3, 64, True),
    }
    assert geometry_names() == tuple(expected)
    for name in geometry_names():
        config = geometry(name)
        heads = (config.num_heads, config.num_kv_heads, config.head_dim, config.tie_embeddings)
        assert (config.family, config.hidden_size, config.num_layers, *heads) == expected[name]
    with pytest.raises(InputError, match=r"no geometry 'qwen3-9b'; there are fdv2-1\.5b, fdv2-7b"):
        geometry("qwen3-9b")


@pytest.mark.parametrize(
    ("name", "billions"),
    [("fdv2-1.5b", 1.54), ("fdv2-7b", 7.62), ("nld-3b", 3.83), ("nld-8b", 8.49), ("nld-14b", 13.51)],
)
def test_published_sizes(name: str, billions: float) -> None:
    _, params = abstract_decoder(geometry(name), "bfloat16", None)
    assert round(sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e9, 2) == billions


def test_diffusion_geometries_equal_the_published_configs(shared: Path) -> None:
    fixtures = shared / "fixtures"
    assert geometry("fdv2-7b") == read_config(fixtures / "fast_dllm_v2_7b")
    assert geometry("nld-8b") == read_config(fixtures / "nemotron" / "Nemotron-Labs-Diffusion-8B.config.json")


def test_smollm2_is_the_published_one(smollm2_folder: Path) -> None:
    config = read_config(smollm2_folder)
    assert config.rms_norm_eps == pytest.approx(1e-5, rel=1e-6)  # the file's metadata is float32
    assert dataclasses.replace(config, rms_norm_eps=1e-5) == geometry("smollm2-135m")


def saved(config: Any, folder: Path) -> ModelConfig:
    config.save_pretrained(folder)
    return read_config(folder)


SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-4,
    "bos_token_id": 3,
    "eos_token_id": [4, 5],
    "pad_token_id": 6,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {}),
    ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 10}),
    ("Qwen2", {}),
    ("Qwen2", {"tie_word_embeddings": True}),
    ("Qwen3", {"head_dim": 16}),
    ("Qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    ("Qwen3Moe", EXPERTS),
    ("Qwen3Moe", EXPERTS | {"attention_bias": True, "decoder_sparse_step": 2, "mlp_only_layers": [1]}),
]


@pytest.mark.parametrize(("name", "change"), CASES)
def test_what_transformers_saves_is_what_it_builds(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    theirs = getattr(transformers, f"{name}Config")(**SMALL, **change)
    model = getattr(transformers, f"{name}ForCausalLM")(theirs)
    tensors = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    theirs.architectures = [f"{name}ForCausalLM"]
    ours = saved(theirs, tmp_path)

    def has(*parts: str) -> bool:
        return any(all(part in key for part in parts) for key in tensors)

    layer = "model.layers.0.self_attn"
    assert tensors["model.embed_tokens.weight"] == (ours.vocab_size, ours.hidden_size)
    assert tensors[f"{layer}.q_proj.weight"] == (ours.num_heads * ours.head_dim, ours.hidden_size)
    assert tensors[f"{layer}.k_proj.weight"] == (ours.num_kv_heads * ours.head_dim, ours.hidden_size)
    assert ours.qkv_bias == has("q_proj.bias") == has("k_proj.bias") == has("v_proj.bias")
    assert ours.output_bias == has("o_proj.bias")
    assert ours.mlp_bias == has("mlp", "bias")
    assert ours.qk_norm == has("q_norm.weight") == has("k_norm.weight")
    assert ours.tie_embeddings == (model.lm_head.weight is model.model.embed_tokens.weight)
    assert ours.num_layers == len(model.model.layers) == 4
    sparse = tuple(i for i in range(4) if has(f"layers.{i}.mlp.gate.weight"))
    assert (ours.moe.sparse_layers if ours.moe else ()) == sparse
    if ours.moe:
        assert ours.moe == MoEConfig(6, 2, 24, True, sparse)
        assert tensors["model.layers.3.mlp.experts.down_proj"] == (6, ours.hidden_size, 24)
    else:
        assert tensors["model.layers.0.mlp.down_proj.weight"] == (ours.hidden_size, ours.intermediate_size)
    assert (ours.rms_norm_eps, ours.max_position_embeddings) == (1e-4, 64)
    assert (ours.bos_token_id, ours.eos_token_ids, ours.pad_token_id) == (3, (4, 5), 6)
    assert (ours.rotary.kind, ours.rotary.theta) == ("default", 10000.0)


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3", "Qwen3Moe"])
def test_published_files_survive_transformers(name: str, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    family = {"Llama": "llama", "Qwen2": "qwen2", "Qwen3": "qwen3", "Qwen3Moe": "qwen3_moe"}[name]
    assert saved(getattr(transformers, f"{name}Config")(**raw(family)), tmp_path) == parse(family)
