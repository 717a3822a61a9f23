"""Restore a converted folder over eight simulated devices and compare it with what was saved.

Run as `python sharded_restore_worker.py FOLDER EXPECTED.npz CONFIG_FOLDER`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convert.orbax_folder import restore
from specdiff_jax.config import read_config
from specdiff_jax.model import Decoder


def main() -> None:
    folder, expected_file, config_folder = map(Path, sys.argv[1:])
    config = read_config(config_folder)
    mesh = Mesh(np.array(jax.devices()).reshape(8), ("tensor",))

    def place(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        last = P(*[None] * (leaf.ndim - 1), "tensor")
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, last))

    abstract = nnx.state(nnx.eval_shape(lambda: Decoder(config, dtype="float32", rngs=nnx.Rngs(0))))
    params = restore(folder, jax.tree.map(place, abstract))
    expected = np.load(expected_file)
    for path, leaf in nnx.to_flat_state(params):
        array = leaf[...]
        assert len(array.sharding.device_set) == 8
        assert array.addressable_shards[0].data.size * 8 == array.size
        np.testing.assert_array_equal(np.asarray(array), expected[".".join(map(str, path))])
    print(json.dumps({"compared": len(expected.files)}))


if __name__ == "__main__":
    main()
