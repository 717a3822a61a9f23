"""Run on 4 simulated devices by test_spiffy.py: vanilla on one device, drafts on a mesh; prints tokens as JSON."""

from __future__ import annotations

import json

from specdiff_jax.config import ModelConfig, RotaryConfig
from specdiff_jax.decode.generate import generate
from specdiff_jax.decode.methods import Method, Spiffy, Vanilla
from specdiff_jax.draft_graph import fixed_graph
from specdiff_jax.loading import random_model
from specdiff_jax.parallel import make_mesh

PROMPTS = [[7, 50, 3], [1] * 20, [90, 2, 2, 61, 4]]
CONFIG = ModelConfig(
    family="fast_dllm_v2",
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
    rms_norm_eps=1e-6,
    rotary=RotaryConfig("default", 1e4, (1.0, 0.1, 0.01, 0.001)),
    max_position_embeddings=128,
    qkv_bias=True,
    block_size=8,
    mask_token_id=95,
)


def answers(method: Method, mesh: tuple[int, int] | None) -> dict[str, list]:
    model = random_model(CONFIG, dtype="float32", mesh=None if mesh is None else make_mesh(*mesh))
    results = generate(model, PROMPTS, method, max_new_tokens=20, batch_size=2)
    return {
        "tokens": [list(result.tokens) for result in results],
        "forwards": [result.forwards for result in results],
        "accepted": [result.accepted_drafts for result in results],
    }


if __name__ == "__main__":
    runs = {"vanilla": answers(Vanilla(1.0), None)}
    for mesh in ((2, 2),):
        runs[str(mesh)] = answers(Spiffy(fixed_graph(2, 2), threshold=1.0), mesh)
    print(json.dumps(runs))
