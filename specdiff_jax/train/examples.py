"""What a model is trained on: prompts with their responses, as token ids."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from specdiff_jax.errors import InputError
from specdiff_jax.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt and its response.

    Attributes:
        prompt: ids, already through the chat template.
        response: ids; the last one is the stop id, unless the response was cut short.
    """

    prompt: tuple[int, ...]
    response: tuple[int, ...]


def chat_example(tokenizer: TextTokenizer, prompt: str, answer: str, stop_id: int) -> Example:
    """A user turn through the chat template, and the answer as plain text with the stop id behind it.

    Raises:
        InputError: there is no chat template, or it refuses the prompt.
    """
    question = tokenizer.encode_chat([{"role": "user", "content": prompt}])
    return Example(tuple(question), (*tokenizer.encode(answer), stop_id))


def read_token_files(
    prompts: Path, responses: Sequence[Path], max_repeat_percent: int, holdout: int
) -> tuple[list[Example], list[Example]]:
    """Read prompts and any number of responses to each, stored as token ids.

    Every file is an .npz with `tokens`, the ids of all rows one after the other, and `offsets`, where each row begins
    and the last one ends. A response file also has `repeat_pct`: how much of each row repeats itself. Row i of a
    response file answers row i of the prompts. A response holds the stop id where the model ended; one that was cut
    at its limit has none, and gets none.

    Args:
        prompts: file of the prompts.
        responses: files of responses, each to all prompts.
        max_repeat_percent: responses that repeat more are left out.
        holdout: number of prompts, from the end of the file, whose responses are for validation only.

    Returns:
        examples to train on, and examples to validate on.

    Raises:
        InputError: a file can't be read, lacks an array or contradicts itself or the prompts, or `holdout` isn't a
            part of the prompts.
    """
    questions = _rows(prompts, _read_arrays(prompts, ("tokens", "offsets")))
    if not 0 <= holdout < len(questions):
        raise InputError(f"holdout={holdout}: must be from 0 to below the {len(questions)} prompts of {prompts}")
    first_held_out = len(questions) - holdout
    training: list[Example] = []
    validation: list[Example] = []
    for file in responses:
        arrays = _read_arrays(file, ("tokens", "offsets", "repeat_pct"))
        answers = _rows(file, arrays)
        if not len(answers) == len(arrays["repeat_pct"]) == len(questions):
            raise InputError(
                f"{file}: {len(answers)} responses and {len(arrays['repeat_pct'])} entries of repeat_pct, but "
                f"{prompts} has {len(questions)} prompts: there must be one each"
            )
        for row in np.flatnonzero(arrays["repeat_pct"] <= max_repeat_percent):
            examples = training if row < first_held_out else validation
            examples.append(Example(questions[row], answers[row]))
    return training, validation


def _read_arrays(file: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The named arrays, each a row of whole numbers."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            absent = [name for name in names if name not in stored]
            arrays = {name: stored[name] for name in names if name not in absent}
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from error
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{file}: is no .npz of plain arrays, or it is damaged") from error
    if absent:
        raise InputError(f"{file}: has no array {', '.join(absent)}: it must hold {', '.join(names)}")
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"{file}: {name} is {array.dtype}{list(array.shape)}: must be one row of whole numbers")
    return arrays


def _rows(file: Path, arrays: dict[str, np.ndarray]) -> list[tuple[int, ...]]:
    """The ids of each row."""
    tokens, offsets = arrays["tokens"], arrays["offsets"].astype(np.int64)
    whole = offsets.size and offsets[0] == 0 and offsets[-1] == len(tokens) and (np.diff(offsets) >= 0).all()
    if not whole:
        raise InputError(f"{file}: offsets must rise from 0 to the number of tokens, {len(tokens)}")
    if tokens.size and tokens.min() < 0:
        raise InputError(f"{file}: tokens holds {tokens.min()}: ids must not be negative")
    return [tuple(tokens[start:end].tolist()) for start, end in pairwise(offsets)]
