"""What was tuned on a GPU, kept as data: tiles of attention and row counts of a layer, both for exact shapes.

`tuned/<gpu>.json` is written by `specdiff bench tune`. Where there is no file, or no entry for a shape, a heuristic
decides.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from pallas_kernels.gpu_name import short_name

FOLDER = Path(__file__).parent / "tuned"

_HEAD = ("gpu", "driver", "jax", "date", "commit", "command")
_TILES = ("queries", "keys", "warps", "stages")
_TIMES = ("microseconds", "heuristic_microseconds")

Tiles = TypeVar("Tiles", bound=Any)
Shape = TypeVar("Shape", bound=tuple[int, ...])


class AttentionShape(NamedTuple):
    """What the tiles of attention depend on.

    Attributes:
        branches: of all batch rows together.
        kv_heads: key/value heads.
        slots: of a branch.
        group: queries that share a key/value head.
        head_dim: numbers of a head.
    """

    branches: int
    kv_heads: int
    slots: int
    group: int
    head_dim: int


class LayerShape(NamedTuple):
    """What the row counts of a layer depend on.

    Attributes:
        hidden: numbers of a row.
        qkv: numbers of its query, key and value heads together.
        intermediate: numbers between the two products of the feed-forward.
        rows: that may have to be computed.
        buckets: how many row counts may be chosen.
    """

    hidden: int
    qkv: int
    intermediate: int
    rows: int
    buckets: int


@dataclass(frozen=True)
class Tuned:
    """What was tuned on one GPU.

    Attributes:
        attention: numbers of the tiles, by shape.
        capacities: ascending row counts, the last one all rows, by shape.
    """

    attention: Mapping[AttentionShape, Mapping[str, int]]
    capacities: Mapping[LayerShape, tuple[int, ...]]


def tuned_here() -> Tuned:
    """What was tuned on the present GPU; nothing without one, or where its file is missing.

    Raises:
        ValueError: the file can't be used.
    """
    if jax.default_backend() != "gpu":
        return Tuned({}, {})
    return _tuned_in(FOLDER / f"{short_name(jax.devices()[0].device_kind)}.json")


def tiles_for(shape: AttentionShape, heuristic: Tiles) -> Tiles:
    """`heuristic` with the numbers that were tuned for this very shape on this GPU, if any were.

    Raises:
        ValueError: the file of tuned numbers can't be used.
    """
    return dataclasses.replace(heuristic, **tuned_here().attention.get(shape, {}))


@functools.cache
def _tuned_in(file: Path) -> Tuned:
    return read_tuned(file) if file.exists() else Tuned({}, {})


def read_tuned(file: Path) -> Tuned:
    """What a file holds.

    Raises:
        ValueError: it can't be read or breaks a rule of the format; one line names file and key.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: can't be read ({error}); restore or delete it") from error
    try:
        _require(isinstance(content, dict), "the file", "must hold a JSON object")
        _check_keys(content, "", (*_HEAD, "attention", "capacities"))
        _require(content["gpu"] == file.stem, "gpu", f"must be {file.stem}, as the file is named")
        return Tuned(
            _by_shape(content, "attention", AttentionShape, _TILES, _tiles_of),
            _by_shape(content, "capacities", LayerShape, ("capacities",), _capacities_of),
        )
    except _Fault as fault:
        raise ValueError(f"{file}: {fault}; restore or delete it") from fault


class _Fault(Exception):
    """A key and what is wrong with it."""


def _by_shape(
    content: Mapping[str, Any],
    key: str,
    shape_type: Callable[..., Shape],
    chosen: Sequence[str],
    read: Callable[[Mapping[str, Any], str, Shape], Any],
) -> dict[Shape, Any]:
    """The entries of a list: each has a shape, what was chosen for it, and two times."""
    _require(isinstance(content[key], list), key, "must be a list")
    found: dict[Shape, Any] = {}
    of_shape = getattr(shape_type, "_fields")  # noqa: B009
    for index, entry in enumerate(content[key]):
        where = f"{key}[{index}]"
        _require(isinstance(entry, dict), where, "must be an object")
        _check_keys(entry, f"{where}.", (*of_shape, *chosen, *_TIMES))
        for name in of_shape:
            _require(_is_count(entry[name]), f"{where}.{name}", "must be a whole number from 1 on")
        for name in _TIMES:
            number = isinstance(entry[name], int | float) and not isinstance(entry[name], bool)
            _require(number and entry[name] > 0, f"{where}.{name}", "must be a number above 0")
        shape = shape_type(*(entry[name] for name in of_shape))
        _require(shape not in found, where, "has the shape of an entry before it")
        found[shape] = read(entry, where, shape)
    return found


def _tiles_of(entry: Mapping[str, Any], where: str, shape: AttentionShape) -> dict[str, int]:
    for name in _TILES:
        _require(_is_count(entry[name]), f"{where}.{name}", "must be a whole number from 1 on")
    for name in ("queries", "keys", "warps"):
        _require(entry[name] & (entry[name] - 1) == 0, f"{where}.{name}", "must be a power of two")
    for name, least in (("queries", max(16, shape.group)), ("keys", 16)):
        _require(entry[name] >= least, f"{where}.{name}", f"must be at least {least}")
    return {name: entry[name] for name in _TILES}


def _capacities_of(entry: Mapping[str, Any], where: str, shape: LayerShape) -> tuple[int, ...]:
    counts = entry["capacities"]
    ascending = isinstance(counts, list) and all(map(_is_count, counts)) and sorted(set(counts)) == counts
    holds = ascending and len(counts) <= shape.buckets and counts[-1:] == [shape.rows]
    _require(holds, f"{where}.capacities", f"must be at most {shape.buckets} ascending row counts up to {shape.rows}")
    return tuple(counts)


def _check_keys(values: Mapping[str, Any], prefix: str, keys: Sequence[str]) -> None:
    for key in keys:
        _require(key in values, f"{prefix}{key}", "is missing")
    for key in values:
        _require(key in keys, f"{prefix}{key}", "is no key of such a file")


def _require(holds: bool, key: str, why: str) -> None:
    if not holds:
        raise _Fault(f"{key} {why}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
