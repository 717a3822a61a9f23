"""Rotary settings and tables, against Transformers and plain numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from specdiff_jax.config import parse_config
from specdiff_jax.errors import InputError
from specdiff_jax.geometries import geometry
from specdiff_jax.model.rotary import rotary_table, rotate
from specdiff_jax.rotary_config import RotaryConfig

ONE_ULP = 2.0**-23  # of float32: PyTorch's power is not always rounded to the nearest

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
NLD_YARN = YARN | {
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
SCALINGS = {
    "default": (10000.0, {"rope_type": "default"}),
    "linear": (10000.0, {"rope_type": "linear", "factor": 4.0}),
    "llama3": (500000.0, LLAMA3),
    "llama3.1": (500000.0, LLAMA3 | {"factor": 8.0}),
    "yarn": (1000000.0, YARN),
    "yarn, factor below 1": (1000000.0, NLD_YARN | {"factor": 0.25}),
    "yarn, mscales differ": (1000000.0, NLD_YARN | {"mscale": 0.707}),
    "yarn, one mscale": (1000000.0, YARN | {"mscale": 0.5}),
    "yarn, own attention factor": (150000.0, YARN | {"attention_factor": 0.9}),
    "yarn, not truncated": (150000.0, YARN | {"truncate": False, "beta_fast": 16.0, "beta_slow": 2.0}),
    "yarn, short original": (10000.0, YARN | {"original_max_position_embeddings": 4}),
}


def rotary(config: Mapping[str, Any]) -> RotaryConfig:
    return parse_config(config, "config.json").rotary


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_those_of_transformers(name: str, head_dim: int) -> None:
    pytest.importorskip("torch")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theta, scaling = SCALINGS[name]
    parameters = {"rope_theta": theta, **scaling}
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, rope_parameters=dict(parameters))
    )
    ours = rotary(LLAMA | {"hidden_size": 2 * head_dim, "rope_parameters": parameters})
    assert ours.kind == scaling["rope_type"]
    assert len(ours.inverse_frequencies) == head_dim // 2
    np.testing.assert_allclose(ours.inverse_frequencies, theirs.inv_freq.numpy(), rtol=ONE_ULP)
    assert ours.attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-12)


def test_nemotron_is_ministral3() -> None:
    torch = pytest.importorskip("torch")
    from transformers import Ministral3Config
    from transformers.models.ministral3.modeling_ministral3 import Ministral3RotaryEmbedding, get_llama_4_attn_scale

    ours = geometry("nld-3b").rotary
    theirs = Ministral3RotaryEmbedding(Ministral3Config())
    np.testing.assert_allclose(ours.inverse_frequencies, theirs.inv_freq.numpy(), rtol=1e-7)
    assert ours.attention_factor == theirs.attention_scaling == 1.0

    positions = np.array([[0, 1, 16383, 16384, 32767, 32768, 200_000]])
    table = rotary_table(ours, jnp.asarray(positions))
    cos, sin = theirs(torch.zeros(1), torch.from_numpy(positions))
    np.testing.assert_allclose(table.cos[0], cos[0, :, :64].numpy(), atol=2e-5)
    np.testing.assert_allclose(table.sin[0], sin[0, :, :64].numpy(), atol=2e-5)
    scale = get_llama_4_attn_scale(torch.from_numpy(positions), ours.query_scale_beta, ours.original_max_position)
    np.testing.assert_allclose(table.query_scale, scale[:, 0, :, 0].numpy(), rtol=1e-6)


def test_query_scale() -> None:
    positions = np.array([[0, 16383, 16384, 32767, 32768, 262143]])
    scale = rotary_table(geometry("nld-3b").rotary, jnp.asarray(positions)).query_scale
    expected = 1.0 + 0.1 * np.log(1.0 + np.floor(positions / 16384))
    np.testing.assert_allclose(scale, expected, rtol=1e-6)
    assert scale is not None
    assert scale[0, 0] == scale[0, 1] == 1.0
    assert scale[0, 1] < scale[0, 2] == scale[0, 3] < scale[0, 4]


def test_rotation_is_the_complex_one() -> None:
    config = geometry("qwen3-4b").rotary
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 128)).astype(np.float32)
    positions = np.array([[0, 1, 2], [7, 100, 40000]])
    rotated = rotate(jnp.asarray(x), rotary_table(config, jnp.asarray(positions)))

    pairs = x[..., :64] + 1j * x[..., 64:].astype(np.float64)
    turned = pairs * np.exp(1j * positions[:, :, None, None] * np.array(config.inverse_frequencies))
    np.testing.assert_allclose(rotated, np.concatenate([turned.real, turned.imag], -1), atol=5e-3)
    np.testing.assert_allclose(rotated[0], np.concatenate([turned.real, turned.imag], -1)[0], atol=1e-6)


@pytest.mark.parametrize("name", SCALINGS)
def test_both_layouts_are_equal(name: str) -> None:
    theta, scaling = SCALINGS[name]
    nested = rotary(LLAMA | {"rope_parameters": {"rope_theta": theta, **scaling}})
    legacy = {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
    assert rotary(LLAMA | {"rope_theta": theta, "rope_scaling": legacy}) == nested
    assert rotary(LLAMA | {"rope_theta": theta, "rope_parameters": scaling, "rope_scaling": scaling}) == nested


def test_no_scaling_is_the_default_kind() -> None:
    plain = rotary(LLAMA | {"rope_theta": 10000.0, "rope_scaling": None})
    assert plain.kind == "default"
    assert rotary(LLAMA) == plain, "Llama 2 files name no base"


def test_yarn_does_not_depend_on_the_position_limit() -> None:
    for limit in (4096, 32768, 131072):
        config = LLAMA | {"max_position_embeddings": limit, "rope_theta": 1e6, "rope_scaling": YARN}
        assert rotary(config) == rotary(config | {"max_position_embeddings": 8192})


def test_frequencies_fall_and_stay_positive() -> None:
    for theta, scaling in SCALINGS.values():
        frequencies = np.array(
            rotary(LLAMA | {"rope_parameters": {"rope_theta": theta, **scaling}}).inverse_frequencies
        )
        assert np.all(np.isfinite(frequencies) & (frequencies > 0))
        assert np.all(np.diff(frequencies) <= 0)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 'rope_scaling.type="dynamic": not supported'),
        ({"rope_parameters": {"rope_type": "longrope"}}, 'rope_parameters.rope_type="longrope": not supported'),
        ({"rope_scaling": {"type": "su"}}, 'rope_scaling.type="su": not supported'),
        ({"rope_scaling": {"rope_type": 3}}, "rope_scaling.rope_type=3: must be a string"),
        ({"rope_scaling": {"rope_type": "yarn", "type": "linear"}}, "must be equal"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, 'rope_scaling.factor="2": must be a number'),
        ({"rope_scaling": {"type": "linear", "factor": -2}}, "rope_scaling.factor=-2: must be a number"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "mscale": 1.0}}, "rope_scaling.mscale=1.0: unknown key"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "original_max_position_embeddings is missing"),
        ({"rope_scaling": {"factor": 4.0}}, "rope_scaling.factor=4.0: unknown key"),
        (
            {"rope_scaling": YARN | {"beta_fast": 1, "beta_slow": 2}},
            "rope_scaling.beta_fast=1, rope_scaling.beta_slow=2",
        ),
        ({"rope_scaling": YARN | {"llama_4_scaling_beta": 0.1}}, "rope_scaling.llama_4_scaling_beta=0.1: unknown key"),
        ({"rope_scaling": YARN | {"truncate": 1}}, "rope_scaling.truncate=1: must be true or false"),
        ({"rope_scaling": YARN | {"factor": 1e-9}}, "gives frequencies that are not positive and falling"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 0.5}}, "rope_scaling.high_freq_factor=0.5: the high factor"),
        ({"rope_scaling": {k: v for k, v in LLAMA3.items() if k != "factor"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": "yarn"}, 'rope_scaling="yarn": must be an object'),
        ({"rope_scaling": YARN, "rope_parameters": LLAMA3}, "rope_scaling="),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "rope_theta=10000.0: must be equal to the other"),
        ({"rope_theta": 1}, "rope_theta=1: must be greater than 1"),
        ({"rope_theta": float("nan")}, "rope_theta=NaN: must be a number"),
        ({"rope_theta": 10**400}, "rope_theta=1000"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5: only rotating the whole head"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor=0.5"),
        ({"rope_interleaved": True}, "rope_interleaved=true: only the half-split"),
    ],
)
def test_faults_are_named(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=r"^folder/config\.json: ") as error:
        parse_config(LLAMA | change, "folder/config.json")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
