"""A byte-level BPE tokenizer trained for a small model."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from specdiff_jax.errors import InputError
from specdiff_jax.text import words_with_digits

END, USER, ASSISTANT, MASK = SPECIAL_TOKENS = ("<|end|>", "<|user|>", "<|assistant|>", "<|mask|>")
"""Their ids are their places: `END` is 0."""

SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)
"""Every byte has a token, so that any text can be written."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{{% if message['role'] == 'user' %}}{USER}{{{{ message['content'] }}}}{ASSISTANT}"
    f"{{% elif message['role'] == 'assistant' %}}{{{{ message['content'] }}}}{END}"
    "{% else %}{{ raise_exception('only user and assistant turns are known') }}{% endif %}"
    "{% endfor %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> dict[str, str]:
    """Learn a vocabulary; the same texts give the same files.

    Words are cut as in Qwen2 and digits stand alone, so that arithmetic sees numbers digit by digit.

    Args:
        texts: what the merges are counted on.
        vocab_size: number of tokens, special ones included; fewer where the texts have no more pairs that recur.

    Returns:
        tokenizer.json and tokenizer_config.json, by name.

    Raises:
        InputError: `vocab_size` has no room for the bytes and the special tokens.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise InputError(
            f"vocab_size={vocab_size}: must be at least {SMALLEST_VOCABULARY} "
            f"(256 bytes and {len(SPECIAL_TOKENS)} special tokens)"
        )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = words_with_digits(r"\p{N}")
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "mask_token": MASK,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    return {
        "tokenizer.json": backend.to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
    }
