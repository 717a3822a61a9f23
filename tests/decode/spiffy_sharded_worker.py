"""Run on 4 simulated devices by test_spiffy.py: vanilla on one device, drafts on a mesh; prints tokens as JSON."""

from __future__ import annotations

import dataclasses
import json

from sharded_worker import FAST_DLLM, PROMPTS

from specdiff_jax.decode.generate import generate
from specdiff_jax.decode.methods import Method, Spiffy, Vanilla
from specdiff_jax.draft_graph import fixed_graph
from specdiff_jax.loading import random_model
from specdiff_jax.parallel import make_mesh

CONFIG = dataclasses.replace(FAST_DLLM, num_layers=1)


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
