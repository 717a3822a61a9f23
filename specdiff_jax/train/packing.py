"""Texts of all lengths, laid side by side in rows of one width."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.errors import InputError
from specdiff_jax.train.examples import Example

_OPEN_ROWS = 256  # rows in which a text looks for room; more would hardly be filled better
_NO_BLOCK = -1


@dataclass(frozen=True)
class PackedTexts:
    """Rows of texts, each array [rows, width], in small integer types.

    Attributes:
        tokens: ids; the stop id where there is no text.
        positions: place of each token in its text.
        segments: number of the text within the row, from 1; 0 where there is none.
        blocks: number of the denoised block within the row: it grows from block to block and from text to text, and is
            below the width; -1 where a token is in no block.
        response: whether the token carries loss.
        dropped: number of examples that are not there, since they are longer than a row, or, once cut to whole blocks,
            have no response left.
    """

    tokens: Int[np.ndarray, "rows width"]
    positions: Int[np.ndarray, "rows width"]
    segments: Int[np.ndarray, "rows width"]
    blocks: Int[np.ndarray, "rows width"]
    response: Bool[np.ndarray, "rows width"]
    dropped: int = 0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.tokens)

    def take(self, indices: Int[np.ndarray, " taken"]) -> dict[str, np.ndarray]:
        """Some rows, as an objective takes them: int32, `response` bool."""
        numbers = ("tokens", "positions", "segments", "blocks")
        batch = {name: getattr(self, name)[indices].astype(np.int32) for name in numbers}
        return {**batch, "response": self.response[indices]}


def pack(examples: Iterable[Example], width: int, spec: BlockSpec | None, stop_id: int) -> PackedTexts:
    """Lay texts into rows, each into the row with the least room that is enough.

    A model fills whole blocks, so texts are trained in whole blocks. Where the blocks are aligned, they are counted
    from the start of the prompt, and those that hold no response are context; else they are counted from the start of
    the response. After a response that ends with the stop id, the block is filled with the stop id, which carries loss,
    too: that is what stands behind an end when decoding. A response that was cut before its end is cut back to whole
    blocks, since nobody knows how it goes on.

    Args:
        examples: in the order in which they are laid.
        width: tokens of a row.
        spec: how blocks lie; None for texts without blocks, which are laid as they are.
        stop_id: ends a response.

    Raises:
        InputError: an example contains the mask token, or none fits.
    """
    laid = [_lay(example, spec, stop_id) for example in _checked(examples, spec)]
    texts = [text for text in laid if len(text.prompt) < text.length <= width]
    if not texts:
        raise InputError(f"none of the {len(laid)} examples fits into a row of {width} tokens: make the rows wider")
    rows, starts = _best_fit([text.length for text in texts], width)
    return _place(texts, rows, starts, width, spec, stop_id, len(laid) - len(texts))


class _Text(NamedTuple):
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    length: int
    """Tokens of the text as it is laid: more than there are, or fewer."""


def _checked(examples: Iterable[Example], spec: BlockSpec | None) -> Iterator[Example]:
    for index, example in enumerate(examples):
        if spec is not None and (spec.mask_token_id in example.prompt or spec.mask_token_id in example.response):
            raise InputError(f"example {index} contains the mask token {spec.mask_token_id}: leave it out")
        yield example


def _lay(example: Example, spec: BlockSpec | None, stop_id: int) -> _Text:
    prompt, response = example.prompt, example.response
    length = len(prompt) + len(response)
    if spec is not None:
        beyond_blocks = (length if spec.aligned else len(response)) % spec.block_size
        ended = response[-1:] == (stop_id,)
        length += -beyond_blocks % spec.block_size if ended else -beyond_blocks
    return _Text(prompt, response, length)


def _best_fit(lengths: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Row and first column of each text: the open row with the least room that is enough, or a new one."""
    open_rows: list[tuple[int, int]] = []  # room and row, by room
    rows, starts, count = [], [], 0
    for length in lengths:
        place = bisect_left(open_rows, (length, 0))
        if place < len(open_rows):
            room, row = open_rows.pop(place)
        else:
            room, row = width, count
            count += 1
        rows.append(row)
        starts.append(width - room)
        insort(open_rows, (room - length, row))
        if len(open_rows) > _OPEN_ROWS:
            del open_rows[0]  # the fullest
    return rows, starts


def _place(
    texts: Sequence[_Text],
    rows: Sequence[int],
    starts: Sequence[int],
    width: int,
    spec: BlockSpec | None,
    stop_id: int,
    dropped: int,
) -> PackedTexts:
    shape = (max(rows) + 1, width)
    small = np.min_scalar_type(-width - 1)
    tokens = np.full(shape, stop_id, np.int32)
    positions, segments = np.zeros(shape, small), np.zeros(shape, small)
    blocks, response = np.full(shape, _NO_BLOCK, small), np.zeros(shape, bool)
    places = np.arange(width, dtype=small)
    next_segment, next_block = [1] * shape[0], [0] * shape[0]
    for text, row, start in zip(texts, rows, starts, strict=True):
        end, response_start = start + text.length, start + len(text.prompt)
        known = (*text.prompt, *text.response)[: text.length]
        tokens[row, start : start + len(known)] = known
        positions[row, start:end] = places[: text.length]
        segments[row, start:end] = next_segment[row]
        next_segment[row] += 1
        response[row, response_start:end] = True
        if spec is not None:
            blocks_start = start if spec.aligned else response_start
            blocks[row, blocks_start:end] = next_block[row] + places[: end - blocks_start] // spec.block_size
            next_block[row] += (end - blocks_start) // spec.block_size
    return PackedTexts(tokens, positions, segments, blocks, response, dropped)
