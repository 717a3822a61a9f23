"""Run on 4 simulated devices by test_sharded.py: generate on several meshes and print the tokens, as JSON.

The argument "few" or "rest" says which cases; every program takes seconds to compile.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from specdiff_jax.config import ModelConfig, MoEConfig, RotaryConfig
from specdiff_jax.decode.generate import generate
from specdiff_jax.decode.methods import Autoregressive, LinearSpeculation, Vanilla
from specdiff_jax.loading import random_model
from specdiff_jax.parallel import make_mesh

PROMPTS = [[7, 50, 3], [1] * 20, [90, 2, 2, 61, 4]]

DENSE = ModelConfig(
    family="qwen3",
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
    rms_norm_eps=1e-6,
    rotary=RotaryConfig("default", 1e4, (1.0, 0.1, 0.01, 0.001)),
    max_position_embeddings=128,
    qk_norm=True,
)
SPARSE = dataclasses.replace(DENSE, family="qwen3_moe", moe=MoEConfig(6, 2, 24, True, (0, 1)))
BLOCK = {"qk_norm": False, "block_size": 8, "mask_token_id": 95}
FAST_DLLM = dataclasses.replace(DENSE, family="fast_dllm_v2", qkv_bias=True, **BLOCK)
NEMOTRON = dataclasses.replace(DENSE, family="nemotron_labs_diffusion", **BLOCK)

FEW = (
    (DENSE, Autoregressive(), 0.0, ((1, 4), (2, 2))),
    (FAST_DLLM, Vanilla(0.02), 0.0, ((2, 2),)),
)
REST = (
    (DENSE, Autoregressive(), 0.0, ((1, 2),)),
    (DENSE, Autoregressive(), 0.8, ((2, 2),)),
    (SPARSE, Autoregressive(), 0.0, ((2, 2),)),
    (FAST_DLLM, Vanilla(0.02), 0.0, ((1, 2), (1, 4))),
    (NEMOTRON, Vanilla(0.02), 0.0, ((2, 2),)),
    (NEMOTRON, LinearSpeculation(), 0.0, ((2, 2),)),
)

if __name__ == "__main__":
    entries = []
    cases = {"few": FEW, "rest": REST}[sys.argv[1]]
    for config, method, temperature, meshes in cases:
        runs = {}
        for shape in (None, *meshes):
            model = random_model(config, dtype="float32", mesh=None if shape is None else make_mesh(*shape))
            results = generate(model, PROMPTS, method, max_new_tokens=10, temperature=temperature, exact=True)
            runs[str(shape)] = [list(result.tokens) for result in results]
        entries.append(runs)
    print(json.dumps(entries))
