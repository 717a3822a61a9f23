"""A trained tokenizer, as this library and Transformers read it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from specdiff_jax.errors import InputError
from specdiff_jax.text import TextTokenizer
from specdiff_jax.train.tokenizer import SPECIAL_TOKENS, train_tokenizer

TEXTS = [f"Anna has {n} apples and buys {3 * n} more, so she's got {4 * n}.\n" for n in range(0, 2000, 17)]
UNSEEN = ["the 1234 apples", " naïve 🙂\t\n\n x", "", "Anna's got<|end|>2+2", "\x00\x7f"]
CHATS = [
    [{"role": "user", "content": "How many apples?"}],
    [
        {"role": "user", "content": " 12 "},
        {"role": "assistant", "content": "13"},
        {"role": "user", "content": "more\n"},
    ],
]


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return train_tokenizer(TEXTS, 290)


@pytest.fixture(scope="module")
def tokenizer(files: dict[str, str]) -> TextTokenizer:
    return TextTokenizer.from_files(files, "trained")


def test_special_tokens_and_digits(tokenizer: TextTokenizer) -> None:
    assert tokenizer.vocab_size == 290
    assert [tokenizer.token_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    assert SPECIAL_TOKENS == ("<|end|>", "<|user|>", "<|assistant|>", "<|mask|>")
    assert tokenizer.special_ids == {0, 1, 2, 3}
    assert [tokenizer.decode([token]) for token in tokenizer.encode("34 apples")][:2] == ["3", "4"]
    assert len(tokenizer.encode(TEXTS[0])) < len(TEXTS[0]) / 2
    single = {token for digit in "0123456789" for token in tokenizer.encode(digit)}
    assert len(single) == 10
    with_digits = [token for token in range(290) if any(digit in tokenizer.decode([token]) for digit in "0123456789")]
    assert set(with_digits) == single


@pytest.mark.parametrize("text", UNSEEN)
def test_any_text_comes_back(tokenizer: TextTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_transformers_gives_the_same_ids(files: dict[str, str], tokenizer: TextTokenizer, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert (theirs.eos_token_id, theirs.mask_token_id) == (0, 3)
    for text in UNSEEN + TEXTS[:5]:
        assert tokenizer.encode(text) == theirs(text)["input_ids"]
    for chat in CHATS:
        ours = tokenizer.encode_chat(chat)
        assert ours == theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


def test_chat_form(tokenizer: TextTokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode_chat(CHATS[1]), skip_special_tokens=False) == (
        "<|user|> 12 <|assistant|>13<|end|><|user|>more\n<|assistant|>"
    )
    with pytest.raises(InputError, match="only user and assistant turns"):
        tokenizer.encode_chat([{"role": "system", "content": "Be brief."}])


def test_the_same_texts_give_the_same_files(files: dict[str, str]) -> None:
    """In another process, too, and in another order."""
    shuffled = random.Random(0).sample(TEXTS, len(TEXTS))
    assert train_tokenizer(iter(shuffled), 290) == files
    program = (
        "import json, sys; from specdiff_jax.train.tokenizer import train_tokenizer;"
        "json.dump(train_tokenizer(json.load(sys.stdin), 290), sys.stdout)"
    )
    ran = subprocess.run([sys.executable, "-c", program], input=json.dumps(TEXTS), capture_output=True, text=True)
    assert json.loads(ran.stdout) == files


def test_few_texts_give_a_smaller_vocabulary() -> None:
    assert TextTokenizer.from_files(train_tokenizer(["aa aa"], 290), "small").vocab_size < 270


def test_a_vocabulary_without_room_for_bytes() -> None:
    with pytest.raises(InputError, match="vocab_size=259: must be at least 260"):
        train_tokenizer(TEXTS, 259)
