"""Run on 8 simulated devices by test_parallel.py: decode on several meshes and print what came out, as JSON."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specdiff_jax.config import ModelConfig, parse_config
from specdiff_jax.model import Decoder, KVCache, empty_cache
from specdiff_jax.parallel import batch_sharding, cache_sharding, check_parallel, make_mesh, shard_abstract

MESHES = ((1, 2), (1, 4), (2, 2))
BATCH, PROMPT, STEPS = 2, 5, 6

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "vocab_size": 97, "attention_bias": True, "mlp_bias": True}
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 96,
    "moe_intermediate_size": 24,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
}


def random_params(abstract: nnx.State) -> nnx.State:
    """Weights with which logits are of order 1 and the next token is no matter of rounding."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(leaf.dtype), abstract)


def greedy(
    graphdef: nnx.GraphDef, params: nnx.State, cache: KVCache, prompt: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Float32 logits of every row and the tokens chosen, (batch, PROMPT + STEPS - 1, vocab) and (batch, STEPS)."""

    @jax.jit
    def forward(params: nnx.State, cache: KVCache, tokens: jax.Array) -> tuple[jax.Array, KVCache]:
        model = nnx.merge(graphdef, params)
        out = model(tokens, cache)
        return model.logits(out.hidden), out.cache.with_lengths(cache.lengths + tokens.shape[1])

    rows, chosen, tokens = [], [], prompt
    for _ in range(STEPS):
        logits, cache = forward(params, cache, tokens)
        tokens = jnp.argmax(logits[:, -1:], axis=-1)
        rows.append(np.asarray(logits))
        chosen.append(np.asarray(tokens))
    return np.concatenate(rows, 1), np.concatenate(chosen, 1)


def run(name: str, config: ModelConfig) -> list[dict[str, Any]]:
    """One entry a mesh: how far the logits are from one device's, both runs' tokens, and where the arrays were."""
    abstract_model = nnx.eval_shape(lambda: Decoder(config, dtype=jnp.float32, rngs=nnx.Rngs(0)))
    graphdef, abstract = nnx.split(abstract_model)
    params = random_params(abstract)
    prompt = np.random.default_rng(1).integers(0, config.vocab_size, (BATCH, PROMPT))
    capacity = PROMPT + STEPS
    alone, tokens = greedy(graphdef, params, empty_cache(config, BATCH, capacity, jnp.float32), jnp.asarray(prompt))

    entries = []
    for data, tensor in MESHES:
        mesh = make_mesh(data, tensor)
        check_parallel(config, mesh)
        placed = jax.tree.map(lambda x, leaf: jax.device_put(x, leaf.sharding), params, shard_abstract(abstract, mesh))
        cache = empty_cache(config, BATCH, capacity, jnp.float32, cache_sharding(mesh))
        logits, chosen = greedy(graphdef, placed, cache, jax.device_put(prompt, batch_sharding(mesh)))
        parts = {}
        for path, variable in nnx.to_flat_state(placed):
            value = variable.get_value()
            here = value.sharding.shard_shape(value.shape)
            parts[".".join(map(str, path))] = [whole // part for whole, part in zip(value.shape, here, strict=True)]
        entries.append(
            {
                "model": name,
                "mesh": [data, tensor],
                "logit_diff": float(np.abs(logits - alone).max()),
                "logit_size": float(np.abs(alone).max()),
                "tokens": chosen.tolist(),
                "tokens_alone": tokens.tolist(),
                "parts": parts,
                "cache_part": list(cache.keys[0].sharding.shard_shape(cache.keys[0].shape)),
            }
        )
    return entries


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    models = {"llama": SIZES | LLAMA, "qwen3_moe": SIZES | QWEN3_MOE}
    print(json.dumps([entry for name, raw in models.items() for entry in run(name, parse_config(raw, name))]))
