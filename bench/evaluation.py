"""Prompts of published data sets, in the words that the DFlash paper's benchmarks put them (arXiv 2602.06036).

The files are read where they lie; they are not part of this project.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from specdiff_jax.errors import InputError
from specdiff_jax.prompts import PromptEntry

_MBPP_TEST = range(11, 511)
"""Task ids of the test split."""


@dataclass(frozen=True)
class _Source:
    """How a data set's items become prompts.

    Attributes:
        field: of an item, what is asked.
        words: the prompt around it.
        identity: what an item is called, from its index and itself.
        wanted: whether it is one of those that are measured.
    """

    field: str
    words: Callable[[str], str]
    identity: Callable[[int, Mapping[str, Any]], str | int]
    wanted: Callable[[Mapping[str, Any]], bool] = lambda item: True


_SOURCES = {
    "gsm8k": _Source(
        "question",
        lambda asked: f"{asked}\nPlease reason step by step, and put your final answer within \\boxed{{}}.",
        lambda index, item: index,
    ),
    "humaneval": _Source(
        "prompt",
        lambda asked: (
            "Write a solution to the following problem and make sure that it passes the tests:\n"
            f"```python\n{asked}\n```"
        ),
        lambda index, item: item["task_id"],
    ),
    "mbpp": _Source(
        "prompt",
        lambda asked: asked,
        lambda index, item: item["task_id"],
        lambda item: item["task_id"] in _MBPP_TEST,
    ),
}


def evaluation_prompts(source: str, file: Path, count: int) -> list[PromptEntry]:
    """The first prompts of a data set.

    Args:
        source: "gsm8k" (test split), "humaneval" or "mbpp" (test split of the sanitized version).
        file: as it was published: JSON lines, which may be gzipped, or one JSON array.
        count: how many.

    Raises:
        InputError: the file can't be read, is not that data set, or has fewer prompts.
    """
    of = _SOURCES[source]
    try:
        items = [(index, item) for index, item in enumerate(_items(file)) if of.wanted(item)]
        entries = [
            PromptEntry(of.words(str(item[of.field])), of.identity(index, item)) for index, item in islice(items, count)
        ]
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file} can't be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not {source} as it was published: {type(error).__name__} {error}") from error
    if len(entries) < count:
        raise InputError(f"{file} has {len(entries)} prompts: ask for no more than that, not {count}")
    return entries


def _items(file: Path) -> Iterable[Any]:
    content = file.read_bytes()
    text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8")
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.split("\n") if line]
