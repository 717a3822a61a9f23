"""Load a large checkpoint of zeros and print how much host memory that took beyond the weights themselves.

Run as `python memory_worker.py FOLDER LAYERS VOCABULARY HIDDEN`; FOLDER is empty, and its shards are sparse files.
Prints one JSON object; all numbers are bytes.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from convert.assemble import load_parameters
from convert.checkpoint import open_checkpoint
from specdiff_jax.config import parse_config
from specdiff_jax.model import Decoder

LAYERS_PER_SHARD = 4


def write_sparse_shard(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file of bfloat16 zeros whose data is a hole."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)


def write_checkpoint(folder: Path, layers: int, vocabulary: int, hidden: int) -> list[tuple[int, ...]]:
    """A Llama with grouped queries in shards of a few layers each; returns every tensor's shape."""
    width, head_dim = hidden * 7 // 2, 64
    kv_rows = hidden // 4
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // head_dim,
        "num_key_value_heads": kv_rows // head_dim,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    ends = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "lm_head.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    layer = {
        "self_attn.q_proj.weight": (hidden, hidden),
        "self_attn.k_proj.weight": (kv_rows, hidden),
        "self_attn.v_proj.weight": (kv_rows, hidden),
        "self_attn.o_proj.weight": (hidden, hidden),
        "mlp.gate_proj.weight": (width, hidden),
        "mlp.up_proj.weight": (width, hidden),
        "mlp.down_proj.weight": (hidden, width),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    shards = [ends]
    for start in range(0, layers, LAYERS_PER_SHARD):
        indices = range(start, min(start + LAYERS_PER_SHARD, layers))
        shards.append({f"model.layers.{i}.{name}": shape for i in indices for name, shape in layer.items()})
    weight_map = {}
    for number, shapes in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_sparse_shard(folder / file, shapes)
        weight_map |= dict.fromkeys(shapes, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return [shape for shapes in shards for shape in shapes.values()]


class AnonymousPeak:
    """Highest anonymous memory of this process while the block runs, sampled every 2 ms."""

    def __enter__(self) -> AnonymousPeak:
        self.start = self.peak = self._now()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.peak = max(self.peak, self._now())

    @staticmethod
    def _now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    folder, sizes = Path(sys.argv[1]), [int(size) for size in sys.argv[2:]]
    shapes = write_checkpoint(folder, *sizes)
    checkpoint = open_checkpoint(folder)
    config = parse_config(checkpoint.config, checkpoint.config_location)
    abstract = nnx.state(nnx.eval_shape(lambda: Decoder(config, dtype="bfloat16", rngs=nnx.Rngs(0))))
    with AnonymousPeak() as memory:
        params = load_parameters(checkpoint.tensors, config, abstract)
    weights = sum(array.nbytes for array in jax.tree.leaves(params))
    largest = 2 * max(int(np.prod(shape)) for shape in shapes)
    beyond = memory.peak - memory.start - weights
    print(json.dumps({"weights": weights, "largest_tensor": largest, "peak": memory.peak, "beyond_weights": beyond}))


if __name__ == "__main__":
    main()
