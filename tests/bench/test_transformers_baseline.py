"""The Transformers baseline does the work that it is timed for."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

import bench.transformers_baseline as baseline
from bench.measure import SHORT

TINY = Qwen3Config(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    initializer_range=1.0,
)
WEIGHTS = 97 * 32 + 2 * (48 * 32 * 3 + (4 + 2 * 2) * 8 * 32 + 4 * 8 * 32 + 2 * 32 + 2 * 8) + 32


@pytest.fixture
def tiny(monkeypatch):
    """The small shape under any name; a compiled step is left uncompiled, which takes too long here."""
    monkeypatch.setattr(baseline, "read_config", lambda name: TINY)
    monkeypatch.setattr(baseline, "_compiled", lambda forward, mode: forward)


@torch.no_grad()
def test_every_mode_chooses_the_same_tokens_every_time(tiny):
    model = baseline.random_model(TINY, "float32", "cpu")
    prompt = torch.arange(10).reshape(2, 5)
    growing = baseline._loop(model, prompt, "eager", 20)
    static = baseline._loop(model, prompt, "compiled", 20)
    answer = baseline._generate(model, prompt)(21)
    assert len(set(answer[0, 5:].tolist())) > 3
    for steps in (20, 3, 20):
        newest = answer[:, 5 + steps]
        assert growing(steps).tolist() == static(steps).tolist() == newest[:, None].tolist()


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_measure_counts_what_a_step_reads(tiny, mode):
    result = baseline.measure("tiny", mode, "bfloat16", batch=2, cache_tokens=5, steps=40, repeats=2)
    assert result["seconds"] > 0
    assert result["weight_bytes"] == 2 * WEIGHTS
    assert result["cache_bytes"] == 2 * 2 * 2 * 5 * 2 * 8 * 2
    assert f"torch {torch.__version__}" in result["implementation"]


@pytest.mark.parametrize(
    ("name", "config_class", "layers"),
    [("qwen3-8b", Qwen3Config, 36), ("nld-3b", LlamaConfig, 26), ("smollm2-135m", LlamaConfig, 30)],
)
def test_geometries_are_read_as_transformers_configs(name, config_class, layers):
    config = baseline.read_config(name)
    assert type(config) is config_class
    assert config.num_hidden_layers == layers


def test_the_diffusion_model_keeps_its_rotary_rule():
    rotary = baseline.read_config("nld-3b").rope_parameters
    assert (rotary["rope_type"], rotary["factor"]) == ("yarn", 16.0)


def test_the_longest_run_fits_the_cache(tiny):
    model = baseline.random_model(TINY, "float32", "cpu")
    prompt = torch.arange(4)[None]
    with torch.no_grad():
        baseline._loop(model, prompt, "compiled", SHORT + 2)(SHORT + 2)
