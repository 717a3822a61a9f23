"""Draft graphs on disk, as JSON."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from convert.whole_folder import check_free
from specdiff_jax.draft_graph import DraftGraph, DraftNode, GraphKey
from specdiff_jax.errors import InputError
from specdiff_jax.json_file import read_json, write_json
from specdiff_jax.keys import MAX_COUNT, Keys, is_whole


def write_graph(graph: DraftGraph, path: Path) -> None:
    """Write a graph; the file appears when it is whole, and the same graph gives the same bytes.

    Raises:
        InputError: the file exists already or can't be written.
    """
    check_free(path)
    try:
        with TemporaryDirectory(prefix=".", dir=path.absolute().parent) as folder:
            whole = Path(folder) / "graph.json"
            write_json(whole, {**dataclasses.asdict(graph), "content_hash": graph.content_hash})
            os.rename(whole, path)
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror or error})") from error


def read_graph(path: Path) -> DraftGraph:
    """The graph in a file.

    Raises:
        InputError: the file can't be read, is damaged, or holds no valid graph; file and fault are named.
    """
    content = Keys(read_json(path))
    key = _read_key(content.section("key")) if content.given("key") else None
    nodes = tuple(_read_node(node, index, content.faults) for index, node in enumerate(content.items("nodes")))
    content.need("nodes")
    content.need("content_hash")
    written_hash = content.text("content_hash", "")
    content.refuse_unknown()
    content.raise_faults(str(path))
    try:
        graph = DraftGraph(key, nodes)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if graph.content_hash != written_hash:
        raise InputError(
            f"{path}: content_hash does not match the content, which was changed or damaged; calibrate again"
        )
    return graph


def _read_key(keys: Keys) -> GraphKey:
    for name in ("model", "strict", "token_shift", "causal"):
        keys.need(name)
    key = GraphKey(
        model=keys.text("model", ""),
        block_size=keys.count("block_size"),
        sub_block=keys.count("sub_block"),
        strict=keys.flag("strict", False),
        token_shift=keys.flag("token_shift", False),
        causal=keys.flag("causal", False),
        threshold=keys.number("threshold", limit=1.0),
    )
    keys.refuse_unknown()
    return key


def _read_node(values: object, index: int, faults: list[str]) -> DraftNode:
    keys = Keys(values if isinstance(values, Mapping) else {}, f"nodes[{index}].", faults)
    keys.need("pairs")
    pairs = keys.items("pairs")
    pairs_of_ranks = tuple((pair[0], pair[1]) for pair in pairs if _are_counts(pair) and len(pair) == 2)
    keys.require(len(pairs_of_ranks) == len(pairs), "must be a list of [position rank, vocabulary rank]", "pairs")
    parents = keys.items("parents")
    keys.require(_are_counts(parents), "must be a list of node numbers", "parents")
    fold_parent = keys.count("fold_parent", least=0) if keys.given("fold_parent") else None
    keys.refuse_unknown()
    return DraftNode(pairs_of_ranks, tuple(parents), fold_parent)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(is_whole(value) and 0 <= value <= MAX_COUNT for value in values)
