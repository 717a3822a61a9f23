"""Run on 4 simulated devices by test_dflash.py: one device's answers and those of meshes, as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from sharded_worker import DENSE

from specdiff_jax.decode.generate import Generation, generate
from specdiff_jax.decode.methods import Autoregressive, DFlash
from specdiff_jax.loading import random_model
from specdiff_jax.parallel import make_mesh

sys.path.append(str(Path(__file__).parents[1] / "support"))
from drafters import drafter_of

# So few tokens that a drafter with random weights is sometimes right.
CONFIG = dataclasses.replace(DENSE, vocab_size=8)
PROMPTS = [[7, 5, 3], [1] * 20, [6, 2, 2, 1, 4], [0, 3]]


def answers(results: list[Generation]) -> dict[str, list]:
    return {
        "tokens": [list(result.tokens) for result in results],
        "forwards": [result.forwards for result in results],
        "accepted": [result.accepted_drafts for result in results],
    }


if __name__ == "__main__":
    runs = {}
    for mesh in (None, (1, 4), (2, 2)):
        model = random_model(CONFIG, dtype="float32", mesh=None if mesh is None else make_mesh(*mesh))
        if mesh is None:
            runs["autoregressive"] = answers(generate(model, PROMPTS, Autoregressive(), max_new_tokens=20))
        method = DFlash(drafter_of(model, mask_token_id=7))
        runs[str(mesh)] = answers(generate(model, PROMPTS, method, max_new_tokens=20, batch_size=4))
    print(json.dumps(runs))
