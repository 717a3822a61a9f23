"""What `specdiff bench tune` measures, chooses and keeps."""

from __future__ import annotations

import dataclasses
import itertools
import json
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_geometry import TINY

import bench.products
import bench.repeated
import bench.tile_calls
import bench.tune
import bench.tune_step
from bench.capacities import best_capacities, mean_time
from bench.environment import Environment
from bench.measure import Timing
from bench.repeated import Repeated, lower, waiting
from bench.run import Settings
from bench.tile_calls import candidates, repeated_attention
from bench.tune import TuneBench, best_tiles, tune
from bench.tuned_file import Finding, add_findings
from pallas_kernels.triton import launch
from pallas_kernels.triton.attention import Tiles
from pallas_kernels.tuned_data import AttentionShape, LayerShape, read_tuned
from specdiff_jax.cli import main
from specdiff_jax.errors import InputError
from specdiff_jax.geometries import geometry

ENVIRONMENT = Environment("specdiff bench tune", "h200", "1.2", "0", "2026-01-01", "aaa")
SETTINGS = Settings(cache_tokens=6, steps=1, repeats=1)
SHAPE, OTHER = AttentionShape(3, 2, 4, 2, 32), AttentionShape(1, 2, 4, 2, 32)
LAYER = LayerShape(48, 256, 40, 12, 2)
CHOSEN = dataclasses.asdict(Tiles(16, 32, 2, 3))


def tiles_found(shape: AttentionShape, microseconds: float = 5.0, **chosen: int) -> Finding:
    return Finding(shape, {**CHOSEN, **chosen}, microseconds, dataclasses.asdict(Tiles(16, 128)), 8.0)


def counts_found(shape: LayerShape, capacities: list[int], microseconds: float = 5.0) -> Finding:
    return Finding(shape, {"capacities": capacities}, microseconds, {"capacities": [6, 12]}, 8.0)


def mean_by_counting(times: dict[int, float], capacities: tuple[int, ...], least: int) -> float:
    return np.mean([times[min(c for c in capacities if c >= needed)] for needed in range(least, max(times) + 1)])


@pytest.mark.parametrize("seed", range(6))
def test_capacities_are_the_best_of_all(seed):
    draws = np.random.default_rng(seed)
    least, buckets = 5, 1 + seed % 4
    counts = sorted({least, 23, *draws.choice(np.arange(least, 23), 6).tolist()})
    times = {count: float(draws.uniform(1, 4) + count * (seed % 2)) for count in counts}
    found = best_capacities(times, least, buckets)
    every = [
        (*below, 23) for size in range(buckets) for below in itertools.combinations(counts[:-1], size)
    ]  # sorted, since the counts are
    assert found in every
    assert mean_by_counting(times, found, least) == pytest.approx(
        min(mean_by_counting(times, capacities, least) for capacities in every)
    )
    assert mean_time(times, found, least) == pytest.approx(mean_by_counting(times, found, least))


def test_a_slower_smaller_count_is_left_out():
    assert best_capacities({4: 3.0, 8: 2.0, 12: 5.0}, least=4, buckets=3) == (8, 12)


def test_capacities_below_what_is_needed_take_no_time():
    assert mean_time({6: 1.0, 12: 4.0}, (3, 6, 12), least=5) == pytest.approx((2 * 1 + 6 * 4) / 8)


def test_row_counts_are_those_of_the_forwards():
    asked = TuneBench(["nld-3b"], [8, 2], rows=32, buckets=4)
    assert sorted(asked.counts(2)) == [32, 48, 64, 72, 80, 96]  # 24, an equal part, is fewer than main's
    assert {72, 144, 216, 288} <= asked.counts(8)
    assert asked.shapes(geometry("nld-3b"))[1:] == [AttentionShape(9, 8, 32, 4, 128), AttentionShape(3, 8, 32, 4, 128)]
    assert asked.shapes(geometry("nld-3b"))[0].branches == 1


@pytest.mark.parametrize("name", ["fdv2-1.5b", "nld-3b"])
def test_candidates_hold_a_slot(name):
    shape = TuneBench([name], [8], 32, 4).shapes(geometry(name))[1]
    tried = candidates(shape)
    assert 15 <= len(tried) == len(set(tried)) <= 30
    assert all(tiles.queries >= shape.group for tiles in tried)
    assert candidates(shape._replace(group=16))[-1].queries == 128
    assert max(tiles.queries for tiles in candidates(shape._replace(slots=4, group=7))) == 32


@pytest.mark.parametrize(("seconds", "kept"), [(9.7e-6, True), (9.9e-6, False), (11e-6, False)])
def test_tiles_are_kept_where_they_gain(seconds, kept):
    slow, fast = {**CHOSEN, "queries": 64}, {**CHOSEN, "queries": 32}
    timed = [
        {"tiles": CHOSEN, "seconds": 10e-6},
        {"tiles": slow, "error": "no memory"},
        {"tiles": fast, "seconds": seconds},
    ]
    found = best_tiles(SHAPE, timed)
    assert found.kept is kept
    assert found.best == (CHOSEN if seconds > 10e-6 else fast)
    assert (found.heuristic, found.heuristic_microseconds) == (CHOSEN, 10.0)


def test_entries_of_other_shapes_stay(tmp_path):
    wider = LAYER._replace(rows=16)
    first = [tiles_found(SHAPE), tiles_found(OTHER), counts_found(LAYER, [8, 12]), counts_found(wider, [8, 16])]
    file = add_findings(tmp_path, ENVIRONMENT, first)
    again = [tiles_found(SHAPE, queries=64), tiles_found(OTHER, microseconds=7.9), counts_found(LAYER, [12])]
    assert add_findings(tmp_path, dataclasses.replace(ENVIRONMENT, commit="bbb"), again) == file
    tuned = read_tuned(file)
    assert tuned.attention == {SHAPE: {**CHOSEN, "queries": 64}}  # the other one gains too little now
    assert tuned.capacities == {LAYER: (12,), wider: (8, 16)}
    content = json.loads(file.read_text())
    assert (content["commit"], content["gpu"]) == ("bbb", "h200")
    assert [path.name for path in tmp_path.iterdir()] == ["h200.json"]


def test_a_shape_that_is_measured_twice_has_one_entry(tmp_path):
    file = add_findings(tmp_path, ENVIRONMENT, [tiles_found(SHAPE), tiles_found(SHAPE, queries=64)])
    assert read_tuned(file).attention == {SHAPE: {**CHOSEN, "queries": 64}}


@pytest.mark.parametrize(("out", "message"), [("file", "--out .*can't be made"), ("", r"h200\.json: can't be read")])
def test_what_cannot_be_written_is_refused_before_measuring(monkeypatch, tmp_path, out, message):
    (tmp_path / "file").touch()
    (tmp_path / "h200.json").touch()
    monkeypatch.setattr(bench.tune, "measure_apart", None)
    with pytest.raises(InputError, match=message):
        next(tune(TuneBench(["nld-3b"], [8], 32, 4), SETTINGS, ENVIRONMENT, tmp_path / out, time_limit=60))


def test_a_bad_file_is_refused_and_stays(tmp_path):
    file = tmp_path / "h200.json"
    file.write_text("{")
    with pytest.raises(InputError, match=r"h200\.json: can't be read"):
        add_findings(tmp_path, ENVIRONMENT, [tiles_found(SHAPE)])
    assert file.read_text() == "{"


@pytest.fixture
def small(monkeypatch) -> None:
    """A small shape under any name, two candidates, and short loops in this process."""
    for module in (bench.tune, bench.tune_step):
        monkeypatch.setattr(module, "geometry", lambda name: TINY)
    monkeypatch.setattr(bench.tune_step, "candidates", lambda shape: [Tiles(16, 32, 2, 3), Tiles(16, 64, 2, 2)])
    for name in ("CALLS", "ROUNDS"):
        monkeypatch.setattr(bench.tile_calls, name, 1)
    for name in ("CACHED_BYTES", "STEP_BYTES"):
        monkeypatch.setattr(bench.products, name, 0)
    monkeypatch.setattr(bench.repeated, "time_step", lambda elapsed, steps, repeats: Timing(elapsed(steps), 1.0))
    monkeypatch.setattr(bench.tune, "measure_apart", here)


def here(module: str, arguments: dict[str, Any], **_: Any) -> dict[str, Any]:
    """A measurement in this process, with what it is given and gives as JSON holds it."""
    return json.loads(json.dumps(import_module(module).measure(**json.loads(json.dumps(arguments)))))


@pytest.fixture
def light(small, monkeypatch) -> None:
    """Something that compiles at once in place of the kernel."""
    monkeypatch.setattr(launch, "INTERPRET", True)
    monkeypatch.setattr(bench.tune_step, "repeated_attention", nearly_nothing)


def nearly_nothing(shape: AttentionShape, cache_tokens: int, tiles: Tiles) -> Repeated:
    """For tiles of 99 stages too much."""

    def add(numbers: jax.Array, own: jax.Array) -> jax.Array:
        if tiles.stages == 99:
            raise ValueError("no such\nstages")
        return numbers + own

    return Repeated(waiting(add), jnp.float32(shape.branches), [jnp.float32(1)], 1)


@pytest.mark.parametrize("branches", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_only_a_single_branch_is_written_to_the_cache(small, monkeypatch, branches):
    monkeypatch.setattr(launch, "INTERPRET", True)
    work = repeated_attention(SHAPE._replace(branches=branches), 6, Tiles(16, 32, 2, 3))
    (_, cached, _), (result,) = lower(work).compile()(work.inputs, list(work.own), jnp.int32(1))
    for before, after in zip(work.inputs[1], cached, strict=True):
        changed = np.unique(np.nonzero(np.asarray(before != after))[2])
        assert changed.tolist() == ([6, 7, 8, 9] if branches == 1 else [])
    mixed = np.asarray(jax.tree.leaves(result)[0], np.float32)
    assert mixed.shape == (1, branches, 4, 2, 2, 32)
    assert np.isfinite(mixed).all()
    assert mixed.std(axis=-1).min() > 0.1


@pytest.mark.parametrize("kernel", ["light", pytest.param("small", marks=pytest.mark.slow)])
def test_the_command_measures_and_keeps(kernel, request, monkeypatch, tmp_path, capsys):
    request.getfixturevalue(kernel)
    monkeypatch.setattr(launch, "INTERPRET", True)
    arguments = ["--geometry", "tiny", "--branches", 2, "--rows", 4, "--cache-tokens", 6, "--buckets", 2]
    with pytest.raises(SystemExit) as caught:
        main(["bench", "tune", *map(str, arguments), "--steps", "1", "--out", str(tmp_path), "--commit", "x", "--json"])
    captured = capsys.readouterr()
    assert caught.value.code == 0, captured.err
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert [row["shape"].split(",")[0] for row in rows] == ["branches 1", "branches 3", "hidden 48"]
    assert all(0 < row["microseconds"] <= row["heuristic_microseconds"] for row in rows)
    tuned = read_tuned(tmp_path / "cpu.json")
    assert set(tuned.attention) <= {SHAPE, OTHER}
    assert set(tuned.capacities) <= {LAYER}
    assert len(tuned.attention) + len(tuned.capacities) == sum(row["kept"] for row in rows)


def test_the_command_prints_a_table(light, tmp_path, capsys):
    arguments = ["--geometry", "tiny", "--branches", "1", "--rows", "4", "--buckets", "1", "--steps", "1"]
    with pytest.raises(SystemExit) as caught:
        main(["bench", "tune", *arguments, "--out", str(tmp_path)])
    captured = capsys.readouterr()
    assert caught.value.code == 0
    assert "heuristic" in captured.out
    assert captured.err.splitlines()[-1].endswith(f"of 3 kept, in {tmp_path / 'cpu'}.json")


def test_tiles_that_fail_are_skipped_and_said(light, monkeypatch, tmp_path):
    monkeypatch.setattr(bench.tune_step, "candidates", lambda shape: [Tiles(16, 32, 2, 99)])
    (tuned,) = tune(TuneBench(["tiny"], [2], 4, 1), SETTINGS, ENVIRONMENT, tmp_path, time_limit=60)
    assert tuned.error is None
    assert len(tuned.skipped) == 2
    assert all(line.endswith("stages 99: ValueError: no such stages") for line in tuned.skipped)
    assert len(tuned.findings) == 3


def test_a_heuristic_that_fails_is_an_error(light, monkeypatch):
    monkeypatch.setattr(bench.tune_step, "default_tiles", lambda *_: Tiles(16, 32, 2, 99))
    with pytest.raises(ValueError, match="no such"):
        bench.tune_step.measure("tiny", [SHAPE], [4], 6, 1, 1)


def test_a_geometry_that_fails_leaves_the_others(light, monkeypatch, tmp_path):
    calls = iter([{"error": "no GPU memory"}, None])
    monkeypatch.setattr(bench.tune, "measure_apart", lambda *given, **_: next(calls) or here(*given))
    one, two = tune(TuneBench(["one", "two"], [2], 4, 1), SETTINGS, ENVIRONMENT, tmp_path, time_limit=60)
    assert (one.error, one.findings, two.error, len(two.findings)) == ("no GPU memory", (), None, 3)


def test_a_gpu_is_needed(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["bench", "tune", "--geometry", "nld-3b", "--out", str(tmp_path)])
    captured = capsys.readouterr()
    assert (caught.value.code, captured.out) == (2, "")
    (line,) = captured.err.splitlines()
    assert line.startswith("specdiff: error: bench tune needs a GPU")
    assert not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError, match="no GPU"):  # though nvidia-smi told of one
        bench.tune_step.measure("nld-3b", [SHAPE], [4], 6, 1, 1)


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [("qwen3-8b", 32, "no diffusion model"), ("nld-3b", 129, "--rows 129: attention holds branches of up to 128")],
)
def test_what_cannot_be_tuned_is_refused(name, rows, message):
    with pytest.raises(InputError, match=message):
        TuneBench([name], [8], rows, 4).check(ENVIRONMENT)
