"""What `specdiff bench drafting` measures and writes."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drafters import TARGETS, drafter_config, drafter_of, target_of
from flax import nnx
from typer.testing import CliRunner

import bench.drafting_step
import bench.target
from bench.decode_step import endless_requests
from bench.drafting import DraftingBench, sections
from bench.drafting_step import _begin, cycling, drafting, measure, verifying
from bench.environment import Environment
from bench.report import fill
from bench.results import add_rows
from bench.run import Settings
from specdiff_jax.cli.bench import bench as commands
from specdiff_jax.errors import InputError
from specdiff_jax.model.drafter import draft_logits, embed_block

WIDTH = 4
ROW_KEYS = [
    "geometry",
    "width",
    "prefix",
    "autoregressive_microseconds",
    "draft_microseconds",
    "verify_microseconds",
    "cycle_microseconds",
    "overhead",
    "settings",
]


@pytest.fixture
def middle():
    """A small target and drafter, and where their loops begin."""
    target = target_of("qwen3")
    drafter = drafter_of(target)
    requests = endless_requests(dataclasses.replace(target, stop_ids=()), 1, 12, 20)
    carry = _begin(target, drafter, requests, WIDTH)
    modules = nnx.merge(target.graphdef, target.params), nnx.merge(drafter.graphdef, drafter.params)
    return *modules, requests, carry


def repeated(step, model, drafter, requests, carry, count):
    run = jax.jit(
        lambda carry, count: jax.lax.fori_loop(0, count, lambda _, now: step(model, drafter, requests, now), carry)
    )
    return run(carry, count)


def test_each_verification_reads_what_the_one_before_chose(middle):
    model, drafter, requests, carry = middle
    cache, expected = carry[0].cache, [carry[2]]
    for _ in range(3):
        visible = cache.lengths[:, None] + jnp.arange(1, WIDTH + 1)[None]
        output = model(expected[-1], cache, visible=visible, taps=(1, 0))
        expected.append(jnp.argmax(model.logits(output.hidden), axis=-1))
    assert len({str(tokens) for tokens in expected}) == 4
    for count in (1, 3):
        _, features, tokens = repeated(verifying, model, drafter, requests, carry, count)
        np.testing.assert_array_equal(tokens, expected[count])
    for ours, theirs in zip(features, output.features, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_each_draft_begins_with_the_last_one(middle):
    model, drafter, requests, carry = middle
    state, features, block = carry
    newest, cache = state.newest, state.drafter_cache
    for count in range(1, 4):
        tokens = jnp.full((1, drafter.config.block_size), drafter.config.mask_token_id).at[:, 0].set(newest)
        context = drafter.context(features, embed_block(model, drafter.config, block))
        drafted = drafter(embed_block(model, drafter.config, tokens), context, jnp.array([WIDTH]), cache)
        drafts = jnp.argmax(draft_logits(model, drafter.config, drafted.hidden[:, 1:WIDTH]), axis=-1)
        newest = drafts[:, -1]
        ended, _, made = repeated(drafting, model, drafter, requests, carry, count)
        np.testing.assert_array_equal(made[:, 1:], drafts)
        assert ended.drafter_cache.lengths.tolist() == [12 - WIDTH]


def test_a_cycle_is_the_loop_s(middle):
    model, drafter, requests, carry = middle
    ended, _, _ = repeated(cycling, model, drafter, requests, carry, 3)
    assert ended.forwards.tolist() == [3]
    assert 3 <= ended.counts[0] <= 3 * WIDTH
    assert ended.cache.lengths[0] == 12 + ended.counts[0] == ended.drafter_cache.lengths[0] + ended.fresh[0]


def test_measure(monkeypatch):
    config = drafter_config(TARGETS["qwen3"])
    monkeypatch.setattr(bench.target, "geometry", lambda name: TARGETS["qwen3"])
    monkeypatch.setattr(bench.drafting_step, "drafter_of", lambda name: config)
    result = measure("tiny", "float32", WIDTH, cache_tokens=12, steps=200, repeats=2)
    assert set(result["seconds"]) == {"autoregressive", "draft", "verify", "cycle"}
    assert min(result["seconds"].values()) > 0
    assert result["spread"] >= 1
    sizes, hidden, vocabulary = result["weight_bytes"], 24, 40
    heads = 8 * hidden * (4 + 2) + 8 * 4 * hidden + 2 * 8
    layer = heads + 3 * 36 * hidden + 2 * hidden
    assert sizes["draft"] == 4 * (2 * hidden * hidden + 2 * hidden + 2 * layer + vocabulary * hidden)
    assert sizes["autoregressive"] == sizes["verify"] > 0


def test_rows_have_the_keys_that_others_read():
    settings = Settings(cache_tokens=512)
    asked = DraftingBench(["qwen3-8b", "qwen3-4b"])
    asked.check(settings)
    planned = sections(asked, settings)
    assert [(section.known["geometry"], section.known["width"]) for section in planned] == [
        ("qwen3-8b", 16),
        ("qwen3-4b", 16),
    ]
    known = planned[0].known
    assert list(known) == ROW_KEYS
    measured = {
        "implementation": "triton",
        "seconds": {"autoregressive": 4e-3, "draft": 0.8e-3, "verify": 4.2e-3, "cycle": 5.1e-3},
        "spread": 1.01,
        "weight_bytes": {"autoregressive": 16_000_000_000, "draft": 3_200_000_000, "verify": 16_000_000_000},
    }
    row = {**known, **planned[0].row(known, measured, 4e12)}
    assert list(row)[: len(ROW_KEYS)] == ROW_KEYS
    assert (row["autoregressive_microseconds"], row["draft_microseconds"], row["overhead"]) == (4000, 800, 1.25)
    assert (row["verify_floor_microseconds"], row["draft_floor_microseconds"]) == (4000, 800)
    assert row["floor_overhead"] == 1.2
    assert row["settings"]["drafter"] == "qwen3-8b-b16"
    assert planned[0].row(known, measured, None)["verify_floor_microseconds"] is None


def test_what_is_not_measured_is_a_row(tmp_path):
    asked = ["drafting", "--geometry", "qwen3-8b", "--time-limit", "0", "--commit", "abc", "--out", str(tmp_path)]
    outcome = CliRunner().invoke(commands, asked)
    assert outcome.exit_code == 1
    assert outcome.stdout == "qwen3-8b, 16 rows: failed: not begun: the time limit was reached\n"
    (row,) = json.loads((tmp_path / "cpu" / "drafting.json").read_text())["rows"]
    assert list(row)[: len(ROW_KEYS)] == ROW_KEYS


def test_the_table(tmp_path):
    section = sections(DraftingBench(["qwen3-8b"]), Settings())[0]
    measured = {
        "implementation": "xla",
        "seconds": {"autoregressive": 4e-3, "draft": 1e-3, "verify": 4.2e-3, "cycle": 5.3e-3},
        "spread": 1.0,
        "weight_bytes": {"autoregressive": 100, "draft": 22, "verify": 100},
    }
    environment = Environment("specdiff bench drafting", "h200", "580.1", "0.11.2", "2026-01-01", "aaa")
    add_rows(tmp_path, "drafting", environment, [{**section.known, **section.row(section.known, measured, None)}])
    table = fill("<!-- results: drafting -->\n<!-- end -->\n", tmp_path)
    assert "| qwen3-8b | 16 | 512 | 4,000 | 1,000 | 4,200 | 5,300 | 1.300 | 1.220 |" in table


@pytest.mark.parametrize(
    ("asked", "tokens", "message"),
    [
        (DraftingBench(["qwen3-8b"], 17), 512, "--width 17: qwen3-8b-b16 drafts blocks of 16, so give 2 to 16"),
        (DraftingBench(["qwen3-8b"], 1), 512, "--width 1"),
        (DraftingBench(["nld-3b"]), 512, "no geometry 'nld-3b-b16'"),
        (DraftingBench(["qwen3-8b"], 8), 8, "--cache-tokens 8: give more than the 8 of --width"),
    ],
)
def test_bad_input_is_refused(asked, tokens, message):
    with pytest.raises(InputError, match=message):
        asked.check(Settings(cache_tokens=tokens))
