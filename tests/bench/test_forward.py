"""What `specdiff bench forward` measures."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bench.forward_step
from bench.forward import ForwardBench, sections
from bench.forward_step import forwards, measure, prescribed, verifications
from bench.run import Settings
from bench.target import filled_cache
from specdiff_jax.block_spec import block_spec
from specdiff_jax.config import parse_config
from specdiff_jax.decode.programs import branch_implementation
from specdiff_jax.loading import random_model

ROW_KEYS = [
    "geometry",
    "path",
    "implementation",
    "branches",
    "fold_ratio",
    "rows",
    "microseconds",
    "spread",
    "weight_floor_microseconds",
]
RAN = {"implementation": "pallas", "shares": {"products": 0.7, "other": 0.3}}
TINY = parse_config(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
    "tiny",
)


def test_each_forward_reads_what_the_one_before_chose():
    model = random_model(dataclasses.replace(TINY, tie_embeddings=False), dtype="float32")
    decoder = nnx.merge(model.graphdef, model.params)
    cache = filled_cache(model, jnp.full((1,), 6, jnp.int32), 10)
    assert not np.any(np.asarray(cache.keys[0]) == np.asarray(cache.values[0]))
    tokens = jnp.arange(4, dtype=jnp.int32)[None]
    expected = [tokens]
    for _ in range(3):
        output = decoder(expected[-1], cache, visible=jnp.full((1, 4), 10))
        expected.append(jnp.argmax(decoder.logits(output.hidden), axis=-1))
    run = jax.jit(lambda count: forwards(decoder, cache, tokens, count)[1])
    assert len({str(value) for value in expected}) == 4
    for count, value in enumerate(expected):
        np.testing.assert_array_equal(run(count), value)


def test_measure_counts_what_a_forward_reads(monkeypatch):
    monkeypatch.setattr(bench.forward_step, "geometry", lambda name: TINY)
    result = measure("tiny", "bfloat16", rows=4, branches=0, cache_tokens=6, steps=400, repeats=2)
    assert result["seconds"] > 0
    assert (result["implementation"], result["shares"]) == ("xla", None)
    per_layer = (4 + 2 * 2) * 8 * 32 + 4 * 8 * 32 + 3 * 48 * 32 + 2 * 32 + 2 * 8
    assert result["weight_bytes"] == 2 * (97 * 32 + 2 * per_layer + 32)  # the embedding is the head
    assert result["cache_bytes"] == 2 * 2 * 2 * 6 * 2 * 8


def test_branches_read_the_weights_once_and_choose_what_each_would_alone(monkeypatch):
    config = dataclasses.replace(
        TINY, family="nemotron_labs_diffusion", block_size=4, mask_token_id=96, tie_embeddings=False
    )
    monkeypatch.setattr(bench.forward_step, "geometry", lambda name: config)
    result = measure("tiny", "bfloat16", rows=4, branches=2, cache_tokens=6, steps=400, repeats=2)
    assert result["seconds"] > 0
    assert result["weight_bytes"] == measure("tiny", "bfloat16", 4, 0, 6, 400, 2)["weight_bytes"]

    model = random_model(config, dtype="float32")
    decoder = nnx.merge(model.graphdef, model.params)
    cache = filled_cache(model, jnp.full((1,), 6, jnp.int32), 10)
    tokens = jnp.arange(8, dtype=jnp.int32).reshape(1, 2, 4)
    _, both = jax.jit(lambda count: verifications(decoder, cache, tokens, count, None, block_spec(config)))(2)
    for branch in range(2):
        _, alone = jax.jit(lambda count, own: forwards(decoder, cache, own, count))(2, tokens[:, branch])
        np.testing.assert_array_equal(both[:, branch], alone)


def test_rows_count_all_branches():
    (section,) = sections(ForwardBench(["nld-3b"], [32], [8]), Settings())
    assert (section.known["path"], section.known["branches"], section.known["rows"]) == ("dense", 8, 288)


def test_folded_sections_stand_beside_the_dense_one():
    asked = ForwardBench(["nld-3b"], [32], [0, 8], [0.5, 0.6], [1, 4])
    planned = [section.known for section in sections(asked, Settings())]
    assert [(row["path"], row["fold_ratio"], row["rows"], row["settings"].get("buckets")) for row in planned] == [
        ("vanilla", None, 32, None),
        ("dense", None, 288, None),
        ("folded", 0.5, 160, 1),
        ("folded", 0.5, 160, 4),
        ("folded", 0.6, 134, 1),
        ("folded", 0.6, 134, 4),
    ]


def test_prescribed_rows_fold():
    folding = prescribed(layers=3, branches=5, slots=8, fold_ratio=0.75, buckets=5)
    masks = np.stack(folding.forced)
    assert masks.shape == (3, 1, 5, 8)
    assert masks.sum(axis=(1, 2, 3)).tolist() == [8, 8, 8]
    assert not masks[:, :, 0].any()
    assert not (masks[0] == masks[1]).all()
    assert (folding.capacities, float(folding.delta)) == ((8, 16, 24, 32, 40), np.inf)


def test_folded_forwards_are_measured(monkeypatch):
    config = dataclasses.replace(
        TINY, family="nemotron_labs_diffusion", block_size=4, mask_token_id=96, tie_embeddings=False
    )
    monkeypatch.setattr(bench.forward_step, "geometry", lambda name: config)
    result = measure("tiny", "float32", 4, 2, 6, steps=200, repeats=1, fold_ratio=0.5, buckets=2)
    assert result["seconds"] > 0


def test_rows_have_the_keys_that_others_read():
    planned = sections(ForwardBench(["qwen3-8b", "nld-3b"], [1, 32], [0]), Settings(cache_tokens=512))
    assert [(section.known["geometry"], section.known["rows"]) for section in planned] == [
        ("qwen3-8b", 1),
        ("qwen3-8b", 32),
        ("nld-3b", 1),
        ("nld-3b", 32),
    ]
    section = planned[1]
    assert section.known["implementation"] == "default"
    measured = {"seconds": 4e-3, "spread": 1.02, "weight_bytes": 8_000_000_000, "cache_bytes": 80_000_000, **RAN}
    row = {**section.known, **section.row(section.known, measured, 4e12)}
    assert list(row)[: len(ROW_KEYS)] == ROW_KEYS
    assert (row["path"], row["implementation"], row["branches"], row["fold_ratio"]) == ("vanilla", "pallas", 0, None)
    assert row["shares"] == RAN["shares"]
    assert (row["microseconds"], row["weight_floor_microseconds"]) == pytest.approx((4000, 2000))
    assert row["weight_and_cache_floor_microseconds"] == pytest.approx(2020)
    assert row["ratio_to_floor"] == 2.0


def test_implementations_stand_side_by_side():
    asked = ForwardBench(["nld-3b"], [32], [8], [0.6], [4], ["xla", "pallas", "default"], profile=True)
    planned = sections(asked, Settings())
    assert [(section.known["path"], section.known["implementation"]) for section in planned] == [
        (path, implementation) for path in ("dense", "folded") for implementation in ("xla", "pallas", "default")
    ]
    assert [section.arguments.get("implementation") for section in planned] == ["xla", "triton", None] * 2
    assert all(section.arguments["profile"] for section in planned)
    assert len({str(section.known["settings"]) for section in planned}) == 2  # dense and folded


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize(("head_dim", "ran"), [(32, "triton"), (16, "xla")])
def test_what_runs_is_what_the_layers_use(qk_norm, head_dim, ran):
    """The kernels take no heads of 16, whatever is asked for."""
    config = dataclasses.replace(TINY, head_dim=head_dim, qk_norm=qk_norm)
    assert branch_implementation(random_model(config, dtype="bfloat16", implementation="triton")) == ran
    assert branch_implementation(random_model(config, dtype="bfloat16", implementation="xla")) == "xla"


def test_without_a_bandwidth_there_is_no_floor():
    (section,) = sections(ForwardBench(["nld-3b"], [1], [0]), Settings())
    measured = {"seconds": 4e-3, "spread": 1.0, "weight_bytes": 1, "cache_bytes": 1, **RAN}
    row = section.row(section.known, measured, None)
    assert row["weight_floor_microseconds"] is row["ratio_to_floor"] is None
