"""Examples from texts and from files of token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdiff_jax.errors import InputError
from specdiff_jax.text import TextTokenizer
from specdiff_jax.train.examples import Example, chat_example, read_token_files

PROMPTS = {"tokens": np.array([10, 11, 12, 13, 14], np.uint16), "offsets": np.array([0, 2, 3, 5], np.int32)}
RESPONSES = {
    "tokens": np.array([20, 2, 21, 22, 23], np.uint16),
    "offsets": np.array([0, 2, 4, 5], np.int32),
    "repeat_pct": np.array([0, 30, 31], np.uint8),
}


def write(folder: Path, prompts: dict[str, Any], responses: dict[str, Any]) -> tuple[Path, list[Path]]:
    np.savez(folder / "prompts.npz", **prompts)
    np.savez(folder / "responses.npz", **responses)
    return folder / "prompts.npz", [folder / "responses.npz"]


def test_chat_example(tiny_tokenizer_folder: Path) -> None:
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    tokenizer = TextTokenizer.from_files({name: (tiny_tokenizer_folder / name).read_text() for name in names}, "tiny")
    example = chat_example(tokenizer, "the fox?", "the dog", 2)
    assert tokenizer.decode(example.prompt, skip_special_tokens=False) == (
        "<|im_start|>user\nthe fox?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert example.response == (*tokenizer.encode("the dog"), 2)


def test_token_files(tmp_path: Path) -> None:
    prompts, (first,) = write(tmp_path, PROMPTS, RESPONSES)
    second = tmp_path / "second.npz"
    np.savez(second, tokens=[5, 6, 7], offsets=[0, 1, 2, 3], repeat_pct=[99, 0, 0])
    training, validation = read_token_files(prompts, [first, second], max_repeat_percent=30, holdout=1)
    # A cut response gets no stop id, and what repeats itself is left out, in both parts.
    assert training == [Example((10, 11), (20, 2)), Example((12,), (21, 22)), Example((12,), (6,))]
    assert validation == [Example((13, 14), (7,))]
    everything, nothing = read_token_files(prompts, [first], max_repeat_percent=100, holdout=0)
    assert len(everything) == 3
    assert nothing == []


@pytest.mark.parametrize(
    ("prompts", "responses", "message"),
    [
        ({"offsets": None}, {}, "prompts.npz: has no array offsets"),
        ({}, {"repeat_pct": None}, "responses.npz: has no array repeat_pct"),
        ({"offsets": [0, 2, 3, 4]}, {}, "prompts.npz: offsets must rise from 0 to the number of tokens, 5"),
        ({"offsets": [1, 2, 3, 5]}, {}, "offsets must rise"),
        ({"offsets": [0, 3, 2, 5]}, {}, "offsets must rise"),
        ({"offsets": np.array([0, 3, 2, 5], np.uint32)}, {}, "offsets must rise"),
        ({"offsets": np.zeros(0, np.int32)}, {}, "offsets must rise"),
        ({}, {"offsets": [0, 2, 5]}, r"2 responses and 3 entries of repeat_pct, but .*prompts.npz has 3 prompts"),
        ({}, {"repeat_pct": [1, 2]}, "3 responses and 2 entries"),
        ({"tokens": np.zeros((5, 1), int)}, {}, r"tokens is int64\[5, 1\]"),
        ({}, {"tokens": np.zeros(5)}, "tokens is float64"),
        ({}, {"tokens": np.array([1, 2, -3, 4, 5])}, "tokens holds -3"),
        ({}, {"tokens": np.array([1, "a", None, 4, 5], object)}, "no .npz of plain arrays"),
    ],
)
def test_odd_files(tmp_path: Path, prompts: dict[str, Any], responses: dict[str, Any], message: str) -> None:
    changed = [
        {name: array for name, array in (whole | part).items() if array is not None}
        for whole, part in ((PROMPTS, prompts), (RESPONSES, responses))
    ]
    with pytest.raises(InputError, match=message) as caught:
        read_token_files(*write(tmp_path, *changed), 30, 1)
    assert "\n" not in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    prompts, responses = write(tmp_path, PROMPTS, RESPONSES)
    with pytest.raises(InputError, match=r"absent.npz: cannot be read \(No such file"):
        read_token_files(tmp_path / "absent.npz", responses, 30, 1)
    np.save(tmp_path / "bare.npy", PROMPTS["tokens"])
    with pytest.raises(InputError, match=r"bare\.npy: is no \.npz"):
        read_token_files(tmp_path / "bare.npy", responses, 30, 1)
    whole = prompts.read_bytes()
    for damaged in (b"", b"text", whole[: len(whole) // 2], whole.replace(PROMPTS["tokens"].tobytes(), bytes(10))):
        prompts.write_bytes(damaged)
        with pytest.raises(InputError, match=r"prompts\.npz"):
            read_token_files(prompts, responses, 30, 1)


@pytest.mark.parametrize("holdout", [-1, 3])
def test_holdout_is_a_part_of_the_prompts(tmp_path: Path, holdout: int) -> None:
    with pytest.raises(InputError, match=f"holdout={holdout}: must be from 0 to below the 3 prompts"):
        read_token_files(*write(tmp_path, PROMPTS, RESPONSES), 30, holdout)


def test_published_responses(shared: Path) -> None:
    folder = shared / "data" / "smollm2_onpolicy"
    training, validation = read_token_files(folder / "prompts.npz", [folder / "responses.npz"], 30, 1000)
    everything = training + validation
    assert 940 <= len(validation) <= 1000
    assert 0.05 < 1 - len(everything) / 50329 < 0.06
    ended = sum(example.response[-1] == 2 for example in everything) / len(everything)
    assert 0.74 < ended < 0.80
    assert all(len(example.response) == 256 for example in everything if example.response[-1] != 2)
