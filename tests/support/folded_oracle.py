"""The folded forward in plain numpy float64 and loops, from Hugging Face's tensors: the truth for tests of folding.

Nothing here comes from the product. One text with its branches at a time, no cache of keys and values, and attention of
every row worked out from all of its keys: no state is merged, nothing is taken out of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import oracle
from oracle import (
    Settings,
    Tensors,
    _experts,
    _feed_forward,
    _linear,
    _query_scale,
    _rms_norm,
    _rotate,
    _softmax,
    _under,
)


class Plan(NamedTuple):
    """The branch whose results each row reads, (branches, slots), and the computed (branch, slot) rows in order."""

    source: np.ndarray
    places: list[tuple[int, int]]


@dataclass(frozen=True)
class Forest:
    """Branches behind a text.

    Attributes:
        text: ids that all branches have read.
        tokens: (branches, slots) ids.
        visible: (branches, slots), how many slots of its own branch each row sees.
        parents: of the branches; that of branch 0 is never asked for.
        fresh: (branches, slots), rows that are computed in the first layer whatever their residual.
        whole: branches that are computed in every layer.
        idle: branches of which nothing is computed.
        start: first position that the branches take; behind the text by default. Tokens of the text that stand where
            they do are not seen, but those behind them are.
    """

    text: np.ndarray
    tokens: np.ndarray
    visible: np.ndarray
    parents: Sequence[int]
    fresh: np.ndarray
    whole: np.ndarray
    idle: np.ndarray
    start: int | None = None


class Folded(NamedTuple):
    """What a folded forward gives.

    Attributes:
        logits: (branches, slots, vocab).
        residual: (layers, branches, slots), relative residuals to the parents.
        recomputed: (layers, branches, slots).
        keys: (layers, branches, slots, kv_heads, head_dim), as each branch reads them.
        values: likewise.
    """

    logits: np.ndarray
    residual: np.ndarray
    recomputed: np.ndarray
    keys: np.ndarray
    values: np.ndarray


def random_parents(generator: np.random.Generator, branches: int) -> np.ndarray:
    """A parent before each branch but the first."""
    return np.array([0, *(generator.integers(branch) for branch in range(1, branches))])


def plan(recomputed: np.ndarray, parents: Sequence[int]) -> Plan:
    """Every row reads the nearest computed row on its way up the parents, itself first."""
    branches, slots = recomputed.shape
    source = np.zeros((branches, slots), int)
    for branch in range(branches):
        for slot in range(slots):
            ancestor = branch
            while not recomputed[ancestor, slot]:
                ancestor = parents[ancestor]
            source[branch, slot] = ancestor
    return Plan(source, [(branch, slot) for branch, slot in np.ndindex(branches, slots) if recomputed[branch, slot]])


def relative_residual(hidden: np.ndarray, parents: Sequence[int]) -> np.ndarray:
    """Distance of each row of (branches, slots, size) to its parent's own row, by that row's length."""
    residual = np.zeros(hidden.shape[:2])
    for branch in range(1, len(hidden)):
        for slot in range(hidden.shape[1]):
            parent = hidden[parents[branch], slot]
            residual[branch, slot] = np.linalg.norm(hidden[branch, slot] - parent) / np.linalg.norm(parent)
    return residual


def attend(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """One row's (heads, head_dim) queries over all of its (keys, kv_heads, head_dim)."""
    mixed = np.zeros(queries.shape)
    for head, query in enumerate(queries):
        kv_head = head // (len(queries) // keys.shape[1])
        mixed[head] = _softmax(keys[:, kv_head] @ query / np.sqrt(len(query))) @ values[:, kv_head]
    return mixed


def read_text(tensors: Tensors, settings: Settings, text: np.ndarray) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Every layer's (keys, values) of a causal text, each (kv_heads, head_dim), one token after the other."""
    if not len(text):
        return [[] for _ in range(settings["layers"])]
    embedded = tensors["model.embed_tokens.weight"].astype(np.float64)[text]
    streams = [embedded, *oracle.forward(tensors, settings, text.tolist(), oracle.causal(len(text)))[1][:-1]]
    parts = [_under(tensors, f"model.layers.{layer}.") for layer in range(settings["layers"])]
    return [
        [_project(part, settings, row, position)[1:] for position, row in enumerate(stream)]
        for part, stream in zip(parts, streams, strict=True)
    ]


def forward(tensors: Tensors, settings: Settings, forest: Forest, delta: float) -> Folded:
    """Run the branches behind their text; a row whose relative residual is at most `delta` is folded.

    Tensors and settings are those of `oracle.forward`. The text itself is causal.
    """
    hidden = tensors["model.embed_tokens.weight"].astype(np.float64)[forest.tokens]
    start = len(forest.text) if forest.start is None else forest.start
    rows = list(np.ndindex(forest.tokens.shape))
    layers = []
    for layer, text in enumerate(read_text(tensors, settings, forest.text)):
        others = [*text[:start], *text[start + forest.tokens.shape[1] :]]
        part = _under(tensors, f"model.layers.{layer}.")
        residual = relative_residual(hidden, forest.parents)
        recomputed = _recomputed(residual, forest, delta, first=layer == 0)
        source, places = plan(recomputed, forest.parents)

        computed = {at: _project(part, settings, hidden[at], start + at[1]) for at in places}
        read = {(branch, slot): computed[source[branch, slot], slot] for branch, slot in rows}
        for branch, slot in rows:
            seen = [*others, *(read[branch, other][1:] for other in range(forest.visible[branch, slot]))]
            keys, values = (np.array(tables) for tables in zip(*seen, strict=True))
            mixed = attend(read[branch, slot][0], keys, values)
            hidden[branch, slot] += _linear(part, "self_attn.o_proj", mixed.reshape(-1))

        fed = {at: _fed_forward(part, settings, hidden[at]) for at in places}
        for branch, slot in rows:
            hidden[branch, slot] += fed[source[branch, slot], slot]
        tables = [np.array([read[at][kind] for at in rows]) for kind in (1, 2)]
        layers.append((residual, recomputed, *(table.reshape(*hidden.shape[:2], *table.shape[1:]) for table in tables)))
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).astype(np.float64)
    logits = _rms_norm(hidden, tensors["model.norm.weight"], settings["eps"]) @ head.T
    return Folded(logits, *(np.array(parts) for parts in zip(*layers, strict=True)))


def _recomputed(residual: np.ndarray, forest: Forest, delta: float, first: bool) -> np.ndarray:
    recomputed = np.zeros(residual.shape, bool)
    for branch, slot in np.ndindex(residual.shape):
        forced = branch == 0 or forest.whole[branch] or (first and forest.fresh[branch, slot])
        recomputed[branch, slot] = not forest.idle[branch] and (forced or residual[branch, slot] > delta)
    return recomputed


def _project(
    part: Tensors, settings: Settings, stream: np.ndarray, position: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One row's queries (heads, head_dim), keys and values (kv_heads, head_dim)."""
    normed = _rms_norm(stream, part["input_layernorm.weight"], settings["eps"])
    queries = _linear(part, "self_attn.q_proj", normed).reshape(settings["heads"], -1)
    keys = _linear(part, "self_attn.k_proj", normed).reshape(settings["kv_heads"], -1)
    values = _linear(part, "self_attn.v_proj", normed).reshape(settings["kv_heads"], -1)
    if "self_attn.q_norm.weight" in part:
        queries = _rms_norm(queries, part["self_attn.q_norm.weight"], settings["eps"])
        keys = _rms_norm(keys, part["self_attn.k_norm.weight"], settings["eps"])
    scale = _query_scale(position, settings)
    turned = np.array([_rotate(query, position, settings) * scale for query in queries])
    return turned, np.array([_rotate(key, position, settings) for key in keys]), values


def _fed_forward(part: Tensors, settings: Settings, stream: np.ndarray) -> np.ndarray:
    normed = _rms_norm(stream, part["post_attention_layernorm.weight"], settings["eps"])
    mlp = _under(part, "mlp.")
    return _experts(mlp, settings, normed[None])[0] if "gate.weight" in mlp else _feed_forward(mlp, normed)
