"""Tokenizers rebuilt from GGUF metadata, against Transformers with the same vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_gguf
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from convert.checkpoint import open_checkpoint
from specdiff_jax.text import TextTokenizer

CORPUS = [
    "the year 2024 isn't the year 1999, they'll say; 12345 is a number",
    "naïve café\n\n\n  done!?  \r\n x = 10007",
] * 8
TEXTS = [
    "the year 20242024 they'LL say",
    "1234567 is\n\n a   number!?\r\n",
    "café cafe\u0301 naïve",
    " x=10007\t\tдом 12",
    "<|im_start|>user\n<think>12<|im_end|>",
]
SPECIAL, USER_DEFINED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<think>"


@pytest.fixture(scope="module")
def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges of a small byte-level BPE that merges across digits, which only the cut can prevent."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    return [*tokens, USER_DEFINED, "[PAD0]"], [" ".join(merge) for merge in model["merges"]]


def metadata(vocabulary: tuple[list[str], list[str]], cut: str) -> dict[str, Any]:
    tokens, merges = vocabulary
    types = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL) - 2) + [4, 5]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": cut,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
    }


def read(path: Path) -> TextTokenizer:
    return TextTokenizer.from_files(open_checkpoint(path).text_files, str(path))


def test_qwen2(vocabulary: tuple[list[str], list[str]], tmp_path: Path) -> None:
    from transformers import AddedToken, Qwen2Tokenizer

    path = tmp_path / "model.gguf"
    write_gguf(path, "qwen2", metadata=metadata(vocabulary, "qwen2"))
    ours = read(path)
    tokens, merges = vocabulary
    vocab = {token: index for index, token in enumerate(tokens[:-1])}
    theirs = Qwen2Tokenizer(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges])
    theirs.add_tokens([AddedToken(token, special=True) for token in SPECIAL])
    theirs.add_tokens([AddedToken(USER_DEFINED, normalized=False)])
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)


def test_llama_bpe(vocabulary: tuple[list[str], list[str]], tmp_path: Path) -> None:
    from transformers.convert_slow_tokenizer import TikTokenConverter

    path = tmp_path / "model.gguf"
    write_gguf(path, metadata=metadata(vocabulary, "llama-bpe"))
    ours = read(path)
    tokens, merges = vocabulary
    vocab = {token: index for index, token in enumerate(tokens[:-1])}
    theirs = Tokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in merges], ignore_merges=True))
    words = pre_tokenizers.Split(Regex(TikTokenConverter().pattern), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    theirs.decoder = decoders.ByteLevel()
    theirs.add_special_tokens(SPECIAL)
    theirs.add_tokens([USER_DEFINED])
    for text in TEXTS:
        assert ours.encode(text) == [0, *theirs.encode(text).ids]  # a begin token, which Llama 3 puts before a text


def test_whether_a_begin_token_is_added_can_be_said(vocabulary: tuple[list[str], list[str]], tmp_path: Path) -> None:
    for given, first in ((True, 0), (False, None)):
        path = tmp_path / f"{given}.gguf"
        write_gguf(path, metadata={**metadata(vocabulary, "smollm"), "tokenizer.ggml.add_bos_token": given})
        assert (read(path).encode("year")[0] == 0) == (first == 0)


def test_smollm_splits_digits(vocabulary: tuple[list[str], list[str]], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata=metadata(vocabulary, "smollm"))
    tokens, _ = vocabulary
    assert [tokens[token] for token in read(path).encode("1999 10007")] == [*"1999", "Ġ", *"10007"]
    assert {"99", "00"} <= set(tokens)  # which another cut would use


def test_stop_ids_and_named_tokens(vocabulary: tuple[list[str], list[str]], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata={**metadata(vocabulary, "smollm"), "tokenizer.chat_template": "{{ bos_token }}!"})
    checkpoint = open_checkpoint(path)
    assert checkpoint.generation_config == {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 2}
    assert json.loads(checkpoint.text_files["tokenizer_config.json"])["eos_token"] == "<|im_end|>"
    assert checkpoint.text_files["chat_template.jinja"] == "{{ bos_token }}!"
    assert read(path).special_ids == {0, 1, 2}
    assert read(path).token_id(USER_DEFINED) is not None
    assert read(path).token_id("[PAD0]") is None


def test_a_file_without_a_tokenizer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf")
    assert open_checkpoint(tmp_path / "model.gguf").text_files == {}
