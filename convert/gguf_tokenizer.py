"""The Hugging Face tokenizer files that a GGUF file's metadata stands for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.pre_tokenizers import PreTokenizer

from convert.gguf_file import GgufFile
from specdiff_jax.errors import InputError
from specdiff_jax.text import words_with_digits

# Token types of llama.cpp; the other types are plain vocabulary.
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
ROLES = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}


@dataclass(frozen=True)
class Rules:
    """What GGUF says with one word, `tokenizer.ggml.pre`.

    Attributes:
        cut: how a text is cut into words before byte-pair merges.
        nfc: whether the text is normalised to NFC first.
        ignore_merges: whether a word that is a token as a whole is taken as it is.
        add_bos: whether a text starts with the begin token where the file doesn't say.
    """

    cut: PreTokenizer
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


RULES = {
    "smollm": Rules(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    "qwen2": Rules(words_with_digits(r"\p{N}"), nfc=True),
    "llama-bpe": Rules(words_with_digits(r"\p{N}{1,3}"), ignore_merges=True, add_bos=True),
}


def tokenizer_files(file: GgufFile) -> dict[str, str]:
    """Texts of tokenizer.json, tokenizer_config.json and, where there is a template, chat_template.jinja.

    A file without a tokenizer has none of them.

    Raises:
        InputError: the tokenizer is no byte-level BPE with one of the known cuts, or its lists don't fit together.
    """
    if "tokenizer.ggml.model" not in file.metadata:
        return {}
    backend = _backend(file)
    tokens = file.metadata["tokenizer.ggml.tokens"]
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for role, name in ROLES.items():
        token = file.metadata.get(f"tokenizer.ggml.{role}_token_id")
        if token is not None:
            settings[name] = tokens[token]
    files = {"tokenizer.json": backend.to_str(), "tokenizer_config.json": json.dumps(settings, ensure_ascii=False)}
    template = file.metadata.get("tokenizer.chat_template")
    return files if template is None else {**files, "chat_template.jinja": template}


def _backend(file: GgufFile) -> Tokenizer:
    metadata = file.metadata
    model, cut = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre")
    instead = "give the model's safetensors folder"
    if model != "gpt2":
        raise InputError(
            f"{file.location}: tokenizer.ggml.model={model}: only gpt2, byte-level BPE, is read; {instead}"
        )
    if cut not in RULES:
        raise InputError(f"{file.location}: tokenizer.ggml.pre={cut}: only {', '.join(RULES)} are read; {instead}")
    rules = RULES[cut]
    try:
        tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        kinds = list(zip(tokens, types, strict=True))
        vocab = {token: index for index, (token, kind) in enumerate(kinds) if kind != UNUSED}
        merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
        backend = Tokenizer(models.BPE(vocab, merges, ignore_merges=rules.ignore_merges))
        begin = tokens[metadata.get("tokenizer.ggml.bos_token_id", 0)]
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{file.location}: tokenizer.ggml.* can't be read: {error!r}") from error
    if rules.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rules.cut
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token, kind in kinds if kind == CONTROL])
    backend.add_tokens([AddedToken(token, normalized=False) for token, kind in kinds if kind == USER_DEFINED])
    if metadata.get("tokenizer.ggml.add_bos_token", rules.add_bos):
        backend.post_processor = processors.TemplateProcessing(
            single=[begin, "$A"], special_tokens=[(begin, vocab[begin])]
        )
    return backend
