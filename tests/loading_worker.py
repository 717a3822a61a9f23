"""Load and draw a model over two simulated devices and compare it with the same on one device.

Run as `python loading_worker.py FOLDER CONVERTED`, both holding the same model.
"""

from __future__ import annotations

import json
import sys

import jax
import numpy as np

from specdiff_jax.loading import load, random_model
from specdiff_jax.parallel import make_mesh


def main() -> None:
    folder, converted = sys.argv[1:]
    mesh = make_mesh(data=1, tensor=2)
    whole = load(folder)
    drawn = random_model(whole.config, dtype="float32")
    pairs = [
        (load(folder, tensor_parallel=2), whole),
        (load(converted, mesh=mesh), whole),
        (random_model(whole.config, dtype="float32", mesh=mesh), drawn),
    ]
    for split, expected in pairs:
        assert split.mesh is not None
        assert dict(split.mesh.shape) == {"data": 1, "tensor": 2}
        qkv = split.params["layers"][0]["attention"]["qkv"][...]
        assert [2 * shard.data.shape[0] for shard in qkv.addressable_shards] == [qkv.shape[0]] * 2
        for ours, theirs in zip(jax.tree.leaves(split.params), jax.tree.leaves(expected.params), strict=True):
            assert len(ours.sharding.device_set) == 2
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    print(json.dumps({"compared": len(pairs)}))


if __name__ == "__main__":
    main()
