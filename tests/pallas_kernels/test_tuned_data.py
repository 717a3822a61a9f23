"""Tuned numbers: who finds them, and which files are refused."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import tuned_data
from pallas_kernels.gpu_name import short_name
from pallas_kernels.triton import attention
from pallas_kernels.triton.attention import Tiles, default_tiles
from pallas_kernels.tuned_data import AttentionShape, LayerShape, read_tuned, tiles_for, tuned_here
from specdiff_jax.config import parse_config
from specdiff_jax.decode.folding import capacities_for, capacities_of
from specdiff_jax.loading import Model, random_model

SHAPE = AttentionShape(9, 8, 32, 4, 128)
HEURISTIC = default_tiles(9, 8, 32, 4)
ROWS, BUCKETS = 12, 3
TIMES = {"microseconds": 5.0, "heuristic_microseconds": 8.25}
CONTENT: dict[str, Any] = {
    "gpu": "h200",
    "driver": "1.2",
    "jax": "0",
    "date": "2026-01-01",
    "commit": "aaa",
    "command": "specdiff bench tune",
    "attention": [{**SHAPE._asdict(), "queries": 16, "keys": 32, "warps": 2, "stages": 1, **TIMES}],
    "capacities": [{**LayerShape(48, 256, 40, ROWS, BUCKETS)._asdict(), "capacities": [5, 12], **TIMES}],
}


@pytest.fixture
def on_gpu(monkeypatch, tmp_path):
    """Puts the file of an H200 in place, and another GPU under jax."""
    (tmp_path / "h200.json").write_text(json.dumps(CONTENT))
    monkeypatch.setattr(tuned_data, "FOLDER", tmp_path)

    def put(name: str) -> None:
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=name)])

    return put


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    """The layer of the file, and by dtype."""
    sizes = {"hidden_size": 48, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = parse_config(
        {
            **sizes,
            "architectures": ["Qwen2ForCausalLM"],
            "vocab_size": 97,
            "num_hidden_layers": 1,
            "head_dim": 32,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
        },
        "tiny",
    )
    return {dtype: random_model(config, dtype=dtype) for dtype in ("bfloat16", "float32")}


def test_tiles_are_those_of_the_exact_shape(on_gpu):
    on_gpu("NVIDIA H200")
    assert tiles_for(SHAPE, HEURISTIC) == Tiles(16, 32, 2, 1)
    for field in SHAPE._fields:
        other = SHAPE._replace(**{field: getattr(SHAPE, field) + 1})
        assert tiles_for(other, HEURISTIC) is not None
        assert tiles_for(other, HEURISTIC) == HEURISTIC


def test_attention_is_launched_in_them(on_gpu, monkeypatch):
    launched = []

    def launch(*given: Any, warps: int, stages: int, **_: Any) -> list[jax.Array]:
        launched.append((given[3], warps, stages))
        return [jnp.zeros(result.shape, result.dtype) for result in given[2]]

    monkeypatch.setattr(attention, "launch", launch)
    rotated, cache = jnp.zeros((288, 8, 6, 128), jnp.bfloat16), jnp.zeros((1, 8, 64, 128), jnp.bfloat16)
    number, scale = jnp.zeros(1, jnp.int32), jnp.ones((1, 32), jnp.float32)
    arguments = rotated, None, cache, cache, number, number, scale, jnp.full((1, 9, 32), 32, jnp.int32)
    attention.branch_attention(*arguments)
    on_gpu("NVIDIA H200")
    attention.branch_attention(*arguments)
    assert launched[0][1:] == (HEURISTIC.warps, HEURISTIC.stages)
    assert launched[1] == ((9, 8, 8), 2, 1)  # programs of 16 queries: 4 slots


def test_another_gpu_and_none_have_the_heuristic(on_gpu):
    assert tiles_for(SHAPE, HEURISTIC) == HEURISTIC  # a CPU
    on_gpu("NVIDIA H100 PCIe")
    assert tiles_for(SHAPE, HEURISTIC) == HEURISTIC


def test_capacities_are_those_of_the_exact_layer(on_gpu, models):
    model = models["bfloat16"]
    assert capacities_for(model, 1, ROWS, BUCKETS) == (4, 8, 12)  # a CPU
    on_gpu("NVIDIA H200")
    assert capacities_for(model, 1, ROWS, BUCKETS) == (5, 12)
    for of, batch, rows, buckets in (
        (model, 2, ROWS, BUCKETS),
        (model, 1, ROWS + 1, BUCKETS),
        (model, 1, ROWS, BUCKETS - 1),
        (models["float32"], 1, ROWS, BUCKETS),
    ):
        assert capacities_for(of, batch, rows, buckets) == capacities_of(rows, buckets)
    on_gpu("NVIDIA L4")
    assert capacities_for(model, 1, ROWS, BUCKETS) == (4, 8, 12)


def test_a_bad_file_is_told_where_it_is_needed(on_gpu, tmp_path):
    (tmp_path / "l4.json").write_text(json.dumps(CONTENT))
    on_gpu("NVIDIA L4")
    with pytest.raises(ValueError, match=r"l4\.json: gpu must be l4"):
        tuned_here()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["gpu"], "l4", "gpu must be h200, as the file is named"),
        (["commit"], None, "commit is missing"),
        (["more"], 1, "more is no key of such a file"),
        (["attention"], {}, "attention must be a list"),
        (["attention", 0], 3, r"attention\[0\] must be an object"),
        (["attention", 0, "stages"], None, r"attention\[0\]\.stages is missing"),
        (["attention", 0, "more"], 1, r"attention\[0\]\.more is no key"),
        (["attention", 0, "slots"], True, r"attention\[0\]\.slots must be a whole number from 1 on"),
        (["attention", 0, "warps"], 0, r"attention\[0\]\.warps must be a whole number from 1 on"),
        (["attention", 0, "keys"], 48, r"attention\[0\]\.keys must be a power of two"),
        (["attention", 0, "queries"], 8, r"attention\[0\]\.queries must be at least 16"),
        (["attention", 0, "microseconds"], 0, r"attention\[0\]\.microseconds must be a number above 0"),
        (["attention", 1], CONTENT["attention"][0], r"attention\[1\] has the shape of an entry before it"),
        (["capacities", 0, "capacities"], [5, 11], r"capacities\[0\]\.capacities must be at most 3 ascending"),
        (["capacities", 0, "capacities"], [12, 5, 12], r"capacities\[0\]\.capacities must be"),
        (["capacities", 0, "capacities"], [3, 5, 7, 12], r"capacities\[0\]\.capacities must be at most 3"),
        (["capacities", 0, "capacities"], [], r"capacities\[0\]\.capacities must be"),
    ],
)
def test_a_fault_is_told_in_one_line(tmp_path, path, value, message):
    content = copy.deepcopy(CONTENT)
    *way, last = path
    place: Any = content
    for key in way:
        place = place[key]
    if value is None:
        del place[last]
    elif isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value
    file = tmp_path / "h200.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"h200\.json: {message}.*; restore or delete it$") as caught:
        read_tuned(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '"h200"'])
def test_what_is_no_such_file_is_refused(tmp_path, text):
    file = tmp_path / "h200.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"h200\.json: "):
        read_tuned(file)


def test_files_that_come_with_the_library_hold_what_they_must(tmp_path):
    (tmp_path / "h200.json").write_text(json.dumps(CONTENT))
    for file in (tmp_path / "h200.json", *sorted(tuned_data.FOLDER.glob("*"))):
        assert file.suffix == ".json"
        tuned = read_tuned(file)
        assert tuned.attention or tuned.capacities


def test_names_of_gpus():
    assert [short_name(name) for name in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")] == ["h200", "a100-sxm4-80gb"]
