"""Every family's logits and greedy texts against Transformers, from the same files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specdiff_jax as sd
from specdiff_jax.loading import Model
from specdiff_jax.model import KVCache, empty_cache

torch_families = pytest.importorskip("torch_families", reason="needs PyTorch and Transformers", exc_type=ImportError)
Saved = torch_families.Saved

TOLERANCE = 1e-4


def tokens(batch: int, rows: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 64, (batch, rows)).astype(np.int32)


def forward(model: Model) -> Callable[..., tuple[jax.Array, KVCache]]:
    """A compiled forward: (ids, cache, visible) to (logits, cache)."""

    @jax.jit
    def run(params: nnx.State, ids: jax.Array, cache: KVCache, visible: jax.Array | None) -> tuple[jax.Array, KVCache]:
        decoder = nnx.merge(model.graphdef, params)
        output = decoder(ids, cache, visible=visible)
        return decoder.logits(output.hidden), output.cache

    return lambda ids, cache, visible=None: run(model.params, ids, cache, visible)


def in_chunks(model: Model, ids: np.ndarray, chunks: tuple[int, ...]) -> np.ndarray:
    """Logits of all rows, read a chunk at a time against the cache."""
    run, cache, parts, start = forward(model), empty_cache(model.config, len(ids), ids.shape[1], jnp.float32), [], 0
    for chunk in chunks:
        cache = cache.with_lengths(jnp.full(len(ids), start, jnp.int32))
        logits, cache = run(ids[:, start : start + chunk], cache)
        parts.append(logits)
        start += chunk
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("family", torch_families.FAMILIES)
def test_prefill_and_cached_decode(saved: Callable[[str], Saved], family: str) -> None:
    source = saved(family)
    ids = tokens(2, 24)
    theirs = source.logits(ids)
    assert np.abs(theirs).max() > 1.0, "too small to tell anything"
    ours = in_chunks(sd.load(source.folder, dtype="float32"), ids, (11, 1, 1, 11))
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_greedy_texts_are_the_same(saved: Callable[[str], Saved], family: str) -> None:
    source = saved(family)
    prompt = tokens(1, 9)
    (result,) = sd.generate(sd.load(source.folder, dtype="float32"), prompt.tolist(), max_new_tokens=20)
    theirs = source.reference.generate(
        torch_families.torch.from_numpy(prompt).long(), max_new_tokens=20, do_sample=False
    )
    assert list(result.tokens) == theirs[0, 9:].tolist()
    assert result.new_tokens == 20


def test_block_causal_prefill(saved: Callable[[str], Saved]) -> None:
    """Fast-dLLM v2 reads a prompt in blocks whose tokens see each other; here the last block is cut off."""
    source, rows = saved("fast_dllm_v2"), 22
    model = sd.load(source.folder, dtype="float32")
    block = model.config.block_size
    ids, positions = tokens(1, rows), np.arange(rows)
    seen = positions[None] // block <= positions[:, None] // block
    mask = torch_families.torch.from_numpy(np.where(seen, 0.0, np.finfo(np.float32).min).astype(np.float32))
    theirs = source.logits(ids, attention_mask=mask[None, None])
    assert np.abs(theirs - source.logits(ids)).max() > 0.1, "the mask must matter"
    visible = ((positions // block + 1) * block)[None]
    ours, _ = forward(model)(ids, empty_cache(model.config, 1, 24, jnp.float32), visible.clip(max=rows))
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)


def test_query_scale_beyond_its_first_step(tmp_path: Path) -> None:
    """The real 16384 positions of Nemotron-Labs-Diffusion's pre-training, passed by the last rows of a long text."""
    prefix, rows, chunks = 16380, 24, 15
    rope = torch_families.YARN_ROPE | torch_families.QUERY_SCALE | {"original_max_position_embeddings": 16384}
    sizes = {
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": 262144,
    }
    source = torch_families.save("nemotron_labs_diffusion", tmp_path, sizes | {"rope_parameters": rope})
    ids = tokens(1, prefix + rows)
    theirs = source.logits(ids, logits_to_keep=rows)
    model = sd.load(tmp_path, dtype="float32")
    run, cache = forward(model), empty_cache(model.config, 1, prefix + rows, jnp.float32)
    for start, chunk in enumerate(np.split(ids[:, :prefix], chunks, axis=1)):
        _, cache = run(chunk, cache.with_lengths(jnp.array([start * chunk.shape[1]])))
    ours, _ = run(ids[:, prefix:], cache.with_lengths(jnp.array([prefix])))
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)
