"""Generated texts, drawn, encoded and packed by several processes.

The texts are cut into shards of one size, each with a seed of its own, so that the number of processes changes nothing
about the result. What the processes import is kept free of jax.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from rich.console import Console
from rich.progress import track

from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.text import TextTokenizer
from specdiff_jax.train.examples import chat_example
from specdiff_jax.train.packing import PackedTexts, pack

Draw: TypeAlias = Callable[[int, int], Sequence[tuple[str, str]]]
"""(seed, count) -> prompts with their answers, `count` of each task, in mixed order; the same arguments give the same
texts. Other processes must be able to import the function."""

SHARD = 1000
"""Texts of each task in a shard."""

_MOST_WORKERS = 32


@dataclass(frozen=True)
class Layout:
    """How texts become rows.

    Attributes:
        text_files: the tokenizer's files, name to text.
        width: tokens of a row.
        spec: how blocks lie; None for texts without blocks.
        stop_id: ends a response.
    """

    text_files: Mapping[str, str]
    width: int
    spec: BlockSpec | None
    stop_id: int


def shard_seed(seed: int, index: int) -> int:
    """The seed of a shard, unlike that of any other shard of any seed."""
    return (seed << 32) + index


def pack_drawn(draw: Draw, count: int, seed: int, layout: Layout) -> PackedTexts:
    """Draw `count` texts of each task and pack them.

    Raises:
        InputError: a text can't be used, or all texts of a shard are longer than a row.
    """
    starts = range(0, count, SHARD)
    shards = [_Shard(draw, min(SHARD, count - start), shard_seed(seed, i), layout) for i, start in enumerate(starts)]
    with _mapper(min(_processors(), len(shards), _MOST_WORKERS)) as run:
        console = Console(stderr=True)
        packed = track(
            run(_pack, shards), "preparing texts", len(shards), console=console, disable=not console.is_terminal
        )
        return _concatenate(list(packed))


@dataclass(frozen=True)
class _Shard:
    draw: Draw
    count: int
    seed: int
    layout: Layout


def _pack(shard: _Shard) -> PackedTexts:
    layout = shard.layout
    tokenizer = TextTokenizer.from_files(layout.text_files, "the tokenizer")
    texts = shard.draw(shard.seed, shard.count)
    examples = (chat_example(tokenizer, prompt, answer, layout.stop_id) for prompt, answer in texts)
    return pack(examples, layout.width, layout.spec, layout.stop_id)


def _concatenate(parts: Sequence[PackedTexts]) -> PackedTexts:
    names = ("tokens", "positions", "segments", "blocks", "response")
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return PackedTexts(**arrays, dropped=sum(part.dropped for part in parts))


Mapper: TypeAlias = Callable[[Callable[[_Shard], PackedTexts], Sequence[_Shard]], Iterator[PackedTexts]]


@contextmanager
def _mapper(workers: int) -> Iterator[Mapper]:
    """`map` over processes, which are started afresh, since a process that runs jax must not be forked."""
    if workers == 1:
        yield map
    else:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            yield pool.map


def _processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
