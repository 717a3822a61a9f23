"""What a batch asks for: prompts as ids, padded to buckets, with limits, stop ids, random keys and sampling
settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Key

from specdiff_jax.decode.sampling import Sampling
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model
from specdiff_jax.parallel import batch_sharding

Prompt = str | Sequence[dict[str, str]] | Sequence[int]

SMALLEST_BUCKET = 32
SHORTEST_PROMPT = 128
"""Shorter prompts are padded to so many tokens: reading them costs next to nothing, another program takes seconds."""
MAX_SEED = 2**32 - 1  # what a jax random key can be made from


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Requests:
    """The rows of a batch; constant while they decode.

    Attributes:
        prompts: ids, padded on the right with anything.
        prompt_lengths: tokens of each prompt.
        limits: most new tokens of each row; 0 marks a row that only fills the batch.
        stop_ids: ids that end a row.
        keys: one random key a row.
        sampling: how tokens are drawn.
    """

    prompts: Int[Array, "batch bucket"]
    prompt_lengths: Int[Array, " batch"]
    limits: Int[Array, " batch"]
    stop_ids: Int[Array, " stops"]
    keys: Key[Array, " batch"]
    sampling: Sampling


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count` and at least the smallest bucket."""
    return max(SMALLEST_BUCKET, 1 << (count - 1).bit_length())


def encode_prompt(model: Model, prompt: Prompt, chat: bool | None) -> tuple[int, ...]:
    """Ids of a prompt: text (through the chat template unless `chat` is False or there is none), messages, or ids.

    Raises:
        InputError: the prompt is empty, needs a tokenizer or a template that is absent, or holds an id beyond the
            vocabulary.
    """
    if len(prompt) == 0:
        raise InputError("the prompt is empty: give at least one character")
    _check_unicode(prompt)
    if not isinstance(prompt, str) and not isinstance(prompt[0], dict):
        ids = tuple(int(token) for token in prompt)  # type: ignore[arg-type]
    else:
        ids = _encode_text(model, prompt, chat)  # type: ignore[arg-type]
    if not ids:
        raise InputError(f"the prompt {prompt!r} gives no tokens")
    outside = [token for token in ids if not 0 <= token < model.config.vocab_size]
    if outside:
        raise InputError(f"the prompt holds token id {outside[0]}, beyond the vocabulary of {model.config.vocab_size}")
    return ids


def _check_unicode(prompt: Prompt) -> None:
    texts = [prompt] if isinstance(prompt, str) else [m.get("content") for m in prompt if isinstance(m, dict)]
    for text in texts:
        try:
            str(text).encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the prompt {text!a} holds half a character, a lone surrogate") from error


def _encode_text(model: Model, prompt: str | Sequence[dict[str, str]], chat: bool | None) -> tuple[int, ...]:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError(f"model {model.name} has no tokenizer: give prompts as token ids")
    if isinstance(prompt, str):
        if not (tokenizer.has_chat_template if chat is None else chat):
            return tuple(tokenizer.encode(prompt))
        prompt = [{"role": "user", "content": prompt}]
    if not tokenizer.has_chat_template:
        raise InputError(f"model {model.name} has no chat template: give plain text and chat=False (--raw)")
    return tuple(tokenizer.encode_chat(prompt))


def check_lengths(model: Model, encoded: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Refuse lengths that make no sense or do not fit the context.

    Raises:
        InputError: naming the number.
    """
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
    context = model.config.max_position_embeddings
    for ids in encoded:
        if len(ids) + max_new_tokens > context:
            raise InputError(
                f"a prompt of {len(ids)} tokens and {max_new_tokens} new ones exceed the context of {context} tokens: "
                "shorten the prompt or lower max_new_tokens"
            )


def row_keys(seed: int | Sequence[int], count: int) -> Key[Array, " count"]:
    """One random key a prompt: from its own seed where `seed` lists them, else from the seed and the prompt's index.

    Raises:
        InputError: a seed is out of range, or the list has another length than the prompts.
    """
    seeds = [seed] if isinstance(seed, int) else seed
    outside = [value for value in seeds if not 0 <= value <= MAX_SEED]
    if outside:
        raise InputError(f"seed must be a whole number from 0 to {MAX_SEED}, not {outside[0]}")
    if isinstance(seed, int):
        return jax.vmap(lambda index: jax.random.fold_in(jax.random.key(seed), index))(jnp.arange(count))
    if len(seed) != count:
        raise InputError(f"{len(seed)} seeds were given for {count} prompts")
    return jax.vmap(jax.random.key)(jnp.asarray(seed, jnp.uint32))


def make_requests(
    model: Model,
    rows: Sequence[Sequence[int]],
    batch: int,
    keys: Key[Array, " rows"],
    limit: int,
    settings: Sampling,
) -> Requests:
    """`rows` as one batch, placed on the model's devices; a short batch is filled with rows that ask for nothing."""
    filler = batch - len(rows)
    prompts = np.zeros((batch, power_of_two(max(SHORTEST_PROMPT, *map(len, rows)))), np.int32)
    for index, row in enumerate(rows):
        prompts[index, : len(row)] = row
    requests = Requests(
        prompts=jnp.asarray(prompts),
        prompt_lengths=jnp.asarray([*map(len, rows), *[1] * filler], jnp.int32),
        limits=jnp.asarray([limit] * len(rows) + [0] * filler, jnp.int32),
        stop_ids=jnp.asarray(model.stop_ids or (-1,), jnp.int32),
        keys=jnp.concatenate([keys, jnp.broadcast_to(keys[:1], (filler,))]),
        sampling=settings,
    )
    if model.mesh is None:
        return requests
    whole = NamedSharding(model.mesh, PartitionSpec())
    by_row = batch_sharding(model.mesh)
    rowless = {"stop_ids", "sampling"}
    placed = {
        name: jax.device_put(value, whole if name in rowless else by_row) for name, value in vars(requests).items()
    }
    return Requests(**placed)
