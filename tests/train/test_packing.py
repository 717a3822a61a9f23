"""Packed rows keep every text whole, in order and apart from its neighbours."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdiff_jax.block_spec import BlockSpec
from specdiff_jax.errors import InputError
from specdiff_jax.train.examples import Example
from specdiff_jax.train.packing import PackedTexts, pack

STOP, MASK = 0, 1


def block_spec(aligned: bool, block_size: int = 4) -> BlockSpec:
    return BlockSpec(
        block_size=block_size,
        mask_token_id=MASK,
        token_shift=aligned,
        causal=not aligned,
        aligned=aligned,
        strict=aligned,
        sub_block=block_size,
        filtered_confidence=aligned,
    )


ALIGNED, FOLLOWING = block_spec(aligned=True), block_spec(aligned=False)
SPECS = {"aligned": ALIGNED, "following": FOLLOWING, "none": None}

tokens = st.integers(2, 60_000)
prompts = st.lists(tokens, max_size=9).map(tuple)
cut = st.lists(tokens, max_size=12).map(tuple)
examples = st.builds(Example, prompts, cut | cut.map(lambda response: (*response, STOP)))


def row(packed: PackedTexts, name: str, index: int = 0) -> list[int]:
    return getattr(packed, name)[index].tolist()


def test_aligned_blocks_count_from_the_prompt() -> None:
    texts = [Example((5, 6, 7, 8, 9), (10, STOP)), Example((5,), (11, 12, 13, STOP))]
    packed = pack(texts, 18, ALIGNED, STOP)
    assert row(packed, "tokens") == [5, 6, 7, 8, 9, 10, 0, 0, 5, 11, 12, 13, 0, 0, 0, 0, 0, 0]
    assert row(packed, "positions") == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 0]
    assert row(packed, "segments") == [1] * 8 + [2] * 8 + [0, 0]
    assert row(packed, "blocks") == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [-1, -1]
    assert row(packed, "response") == [False] * 5 + [True] * 3 + [False] + [True] * 7 + [False] * 2


def test_other_blocks_count_from_the_response() -> None:
    texts = [Example((5, 6, 7), (8, 9, 10, 11, STOP)), Example((5,), (STOP,))]
    packed = pack(texts, 18, FOLLOWING, STOP)
    assert row(packed, "tokens") == [5, 6, 7, 8, 9, 10, 11, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0]
    assert row(packed, "positions") == [*range(11), *range(5), 0, 0]
    assert row(packed, "segments") == [1] * 11 + [2] * 5 + [0, 0]
    assert row(packed, "blocks") == [-1] * 3 + [0] * 4 + [1] * 4 + [-1] + [2] * 4 + [-1, -1]
    assert row(packed, "response") == [False] * 3 + [True] * 8 + [False] + [True] * 4 + [False] * 2


def test_plain_texts_stay_as_they_are() -> None:
    packed = pack([Example((5, 6), (8, 9)), Example((5,), (STOP,))], 8, None, STOP)
    assert row(packed, "tokens") == [5, 6, 8, 9, 5, 0, 0, 0]
    assert row(packed, "segments") == [1, 1, 1, 1, 2, 2, 0, 0]
    assert row(packed, "blocks") == [-1] * 8
    assert row(packed, "response") == [False, False, True, True, False, True, False, False]


@pytest.mark.parametrize(("spec", "kept"), [(ALIGNED, (5, 6, 7, 8, 9, 10, 11, 12)), (FOLLOWING, (5, 6, 7, 8, 9, 10))])
def test_a_cut_response_is_cut_to_whole_blocks(spec: BlockSpec, kept: tuple[int, ...]) -> None:
    packed = pack([Example((5, 6), (7, 8, 9, 10, 11, 12, 13))], 8, spec, STOP)
    assert packed.tokens[packed.segments > 0].tolist() == list(kept)
    assert packed.response.sum() == len(kept) - 2


def test_best_fit() -> None:
    lengths = (6, 5, 2, 4, 3, 1)
    packed = pack([Example((), (9,) * length) for length in lengths], 8, None, STOP)
    assert [row(packed, "segments", index) for index in range(packed.rows)] == [
        [1] * 6 + [2] * 2,
        [1] * 5 + [2] * 3,
        [1] * 4 + [2] + [0] * 3,
    ]


def test_dropped_examples_are_counted() -> None:
    too_long = Example((5,) * 9, (6, STOP))
    nothing_left = Example((5, 6, 7), (8, 9))
    without_response = Example((5,), ())
    packed = pack([too_long, nothing_left, without_response, Example((5,), (STOP,))], 8, FOLLOWING, STOP)
    assert (packed.rows, packed.dropped) == (1, 3)


@pytest.mark.parametrize("texts", [[], [Example((5,) * 9, (6, STOP))]])
def test_nothing_fits(texts: list[Example]) -> None:
    with pytest.raises(InputError, match=f"none of the {len(texts)} examples fits into a row of 8 tokens"):
        pack(texts, 8, ALIGNED, STOP)


@pytest.mark.parametrize("bad", [Example((5, MASK), (6, STOP)), Example((5,), (MASK, STOP))])
def test_mask_token_in_an_example(bad: Example) -> None:
    with pytest.raises(InputError, match="example 1 contains the mask token 1"):
        pack([Example((5,), (6, STOP)), bad], 8, ALIGNED, STOP)
    assert pack([bad], 8, None, STOP).rows == 1


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@given(texts=st.lists(examples, max_size=30))
def test_every_text_is_there_once(spec: BlockSpec | None, texts: list[Example]) -> None:
    width = 24
    expected = sorted(text for text in map(expected_text(spec), texts) if text is not None and len(text[0]) <= width)
    if not expected:
        with pytest.raises(InputError, match="none of the"):
            pack(texts, width, spec, STOP)
        return
    packed = pack(texts, width, spec, STOP)
    assert packed.dropped == len(texts) - len(expected)
    found = []
    for index in range(packed.rows):
        segments, blocks = packed.segments[index], packed.blocks[index]
        used = (segments > 0).sum()
        assert not segments[used:].any(), "padding stands at the end"
        assert (np.diff(segments[:used]) >= 0).all()
        assert not packed.response[index, used:].any()
        assert (blocks[used:] == -1).all()
        numbered = blocks[blocks >= 0]
        assert (np.diff(numbered) >= 0).all()
        assert (numbered < width).all()
        for segment in range(1, segments.max() + 1):
            place = np.flatnonzero(segments == segment)
            assert packed.positions[index, place].tolist() == list(range(len(place)))
            found.append((packed.tokens[index, place].tolist(), int((~packed.response[index, place]).sum())))
            assert_blocks(spec, packed, index, place)
    assert sorted(found) == expected


def expected_text(spec: BlockSpec | None) -> Callable[[Example], tuple[list[int], int] | None]:
    """The ids of a text as it must be laid, and the length of its prompt."""

    def laid(example: Example) -> tuple[list[int], int] | None:
        ids, prompt = [*example.prompt, *example.response], len(example.prompt)
        outside = 0 if spec is None or spec.aligned else prompt
        if spec is not None and example.response[-1:] == (STOP,):
            while (len(ids) - outside) % spec.block_size:
                ids.append(STOP)
        elif spec is not None:
            while (len(ids) - outside) % spec.block_size:
                ids.pop()
        return (ids, prompt) if len(ids) > prompt else None

    return laid


def assert_blocks(spec: BlockSpec | None, packed: PackedTexts, index: int, place: np.ndarray) -> None:
    """Blocks are whole, belong to one text, and hold every response token."""
    blocks = packed.blocks[index, place]
    if spec is None:
        assert (blocks == -1).all()
        return
    others = np.delete(packed.blocks[index], place)
    for block in set(blocks.tolist()) - {-1}:
        assert (blocks == block).sum() == spec.block_size
        assert block not in others
    in_block = np.ones_like(blocks, bool) if spec.aligned else packed.response[index, place]
    np.testing.assert_array_equal(blocks >= 0, in_block)


def test_a_batch() -> None:
    packed = pack([Example((5,), (60_000 + n, STOP)) for n in range(9)], 8, ALIGNED, STOP)
    batch = packed.take(np.array([4, 0]))
    assert {name: array.dtype.name for name, array in batch.items()} == {
        "tokens": "int32",
        "positions": "int32",
        "segments": "int32",
        "blocks": "int32",
        "response": "bool",
    }
    assert batch["tokens"].tolist() == [[5, 60_008, 0, 0, 0, 0, 0, 0], [5, 60_000, 0, 0, 5, 60_001, 0, 0]]


def test_many_texts_fill_their_rows_in_little_time() -> None:
    """10,000 texts take a quarter of a second; the limit leaves room for a busy machine."""
    generator = np.random.default_rng(0)
    texts = [
        Example((5,) * int(prompt), (*[6] * int(response), STOP))
        for prompt, response in generator.integers(10, 100, (10_000, 2))
    ]
    start = time.process_time()
    packed = pack(texts, 512, ALIGNED, STOP)
    assert time.process_time() - start < 5
    assert (packed.segments > 0).mean() > 0.95
