"""Load and draw a drafter for a target on two simulated devices and compare it with the same on one device.

Run as `python drafter_worker.py FOLDER`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from specdiff_jax.drafter_config_file import read_drafter_config
from specdiff_jax.drafter_loading import load_drafter, random_drafter
from specdiff_jax.loading import random_model
from specdiff_jax.parallel import make_mesh


def main() -> None:
    folder = Path(sys.argv[1])
    config = read_drafter_config(folder)
    settings = replace(config.backbone, num_layers=6)
    target = random_model(settings, dtype="float32")
    split = random_model(settings, dtype="float32", mesh=make_mesh(data=1, tensor=2))
    pairs = [
        (load_drafter(folder, split), load_drafter(folder, target)),
        (random_drafter(config, split), random_drafter(config, target)),
    ]
    for found, expected in pairs:
        for ours, theirs in zip(jax.tree.leaves(found.params), jax.tree.leaves(expected.params), strict=True):
            assert len(ours.sharding.device_set) == 2
            assert ours.sharding.is_fully_replicated
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    print(json.dumps({"compared": len(pairs)}))


if __name__ == "__main__":
    main()
