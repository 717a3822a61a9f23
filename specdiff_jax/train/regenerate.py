"""A target's own answers to prompts, as token ids: what its drafter learns from."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convert.whole_folder import file_appearing_whole
from specdiff_jax.decode.generate import check_method, generate
from specdiff_jax.decode.methods import Autoregressive
from specdiff_jax.decode.requests import MAX_SEED, check_lengths, encode_prompt
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.errors import InputError
from specdiff_jax.json_file import read_json, write_json
from specdiff_jax.keys import shown
from specdiff_jax.loading import Model
from specdiff_jax.prompts import PromptEntry

PROMPTS = "prompts.npz"
SETTINGS = "settings.json"
PARTS = "parts"

_REPEATED = 8  # tokens in a row that count as said again
_SHORTEST = 40  # shorter responses repeat nothing


@dataclass(frozen=True)
class RegenerateSettings:
    """How prompts are answered.

    Attributes:
        samples: answers to each prompt.
        batch_size: prompts answered side by side.
        temperature: 0 is greedy.
        top_p: mass of the nucleus to sample from.
        top_k: candidates to sample from; 0 is all.
        seed: of the draws; every answer has its own, whatever is in its batch.
        max_new_tokens: of an answer.
    """

    samples: int = 1
    batch_size: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    max_new_tokens: int = 256


def regenerate(
    model: Model,
    entries: Sequence[PromptEntry],
    out: Path,
    settings: RegenerateSettings,
    *,
    chat: bool | None = None,
    on_batch: Callable[[int], None] = lambda done: None,
) -> list[Path]:
    """Let a target answer prompts, and keep both as `examples.read_token_files` reads them.

    Finished batches are kept in a folder of parts, so that a call with the same model, prompts and settings goes on
    where another one was stopped. The files appear when all answers are there, in the order of the prompts.

    Args:
        model: the target.
        entries: the prompts.
        out: folder of the files, which is made.
        settings: how to answer.
        chat: put texts through the chat template; by default where the model has one.
        on_batch: called with the number of answers that are there.

    Returns:
        the files: the prompts, then the responses, a file for each sample.

    Raises:
        InputError: a prompt or setting can't be used, or the folder holds answers that were made in another way.
    """
    for name in ("samples", "batch_size"):
        if getattr(settings, name) < 1:
            raise InputError(f"{name} must be at least 1, not {getattr(settings, name)}")
    if not 0 <= settings.seed <= MAX_SEED:
        raise InputError(f"seed must be a whole number from 0 to {MAX_SEED}, not {settings.seed}")
    check_method(model, Autoregressive())
    sampling(settings.temperature, settings.top_p, settings.top_k, model.config.vocab_size)
    prompts = [encode_prompt(model, entry.prompt, chat) for entry in entries]
    check_lengths(model, prompts, settings.max_new_tokens)
    _claim(out, {"model": model.name, "dtype": str(model.dtype), "prompts": _digest(prompts), **asdict(settings)})
    files = [out / PROMPTS, *(out / _responses(sample) for sample in range(settings.samples))]
    if all(file.exists() for file in files):
        return files

    # Prompts of like lengths are padded to the same, and their answers are often alike, too.
    order = sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), index))
    batches = [order[begin : begin + settings.batch_size] for begin in range(0, len(order), settings.batch_size)]
    done = 0
    dtype = np.dtype(np.uint16 if model.config.vocab_size <= 1 << 16 else np.int32)
    answers: list[list[np.ndarray]] = []
    for sample in range(settings.samples):
        responses: list[np.ndarray] = [np.zeros(0, dtype)] * len(prompts)
        for number, rows in enumerate(batches):
            part = out / PARTS / f"{sample + 1}-{number:06d}.npz"
            found = _read_part(part, len(rows))
            if found is None:
                found = _answer(model, [prompts[row] for row in rows], rows, sample, settings, dtype)
                part.parent.mkdir(exist_ok=True)  # gone where all was finished, and a file was removed
                with file_appearing_whole(part) as partial:
                    np.savez(partial, allow_pickle=False, **_ragged(found, dtype))
            for row, response in zip(rows, found, strict=True):
                responses[row] = response
            done += len(rows)
            on_batch(done)
        answers.append(responses)

    stored = [np.asarray(prompt, dtype) for prompt in prompts]
    _write(files[0], _ragged(stored, dtype))
    for file, responses in zip(files[1:], answers, strict=True):
        percents = np.array([repeat_percent(response.tolist()) for response in responses], np.uint8)
        _write(file, {**_ragged(responses, dtype), "repeat_pct": percents})
    shutil.rmtree(out / PARTS)
    return files


def repeat_percent(tokens: Sequence[int]) -> int:
    """How many of each hundred runs of eight tokens occurred before in the same text; 0 for a short one."""
    if len(tokens) < _SHORTEST:
        return 0
    runs = [tuple(tokens[begin : begin + _REPEATED]) for begin in range(len(tokens) - _REPEATED + 1)]
    return round(100 * (1 - len(set(runs)) / len(runs)))


def _responses(sample: int) -> str:
    return "responses.npz" if sample == 0 else f"responses_{sample + 1}.npz"


def _claim(out: Path, made: dict[str, Any]) -> None:
    """Make the folder for answers that are made in this way, or check that it is one.

    Raises:
        InputError: it is another's, or can't be made.
    """
    file = out / SETTINGS
    if os.path.exists(out) and not file.is_file():
        raise InputError(f"{out}: exists already and holds no answers to go on with; choose another --out")
    if not os.path.exists(out):
        try:
            (out / PARTS).mkdir(parents=True)
            with file_appearing_whole(file) as partial:
                write_json(partial, made)
        except OSError as error:
            raise InputError(f"{out}: can't be made ({error.strerror or error})") from error
        return
    before = read_json(file)
    for key, value in made.items():
        if before.get(key) != value:
            raise InputError(
                f"{out}: was begun with {key}={shown(before.get(key))}, not {shown(value)}: go on with what it was "
                "begun with, or choose another --out"
            )


def _digest(prompts: Sequence[Sequence[int]]) -> str:
    """What tells lists of prompts apart."""
    return hashlib.sha256(repr([list(prompt) for prompt in prompts]).encode()).hexdigest()


def _answer(
    model: Model,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[int],
    sample: int,
    settings: RegenerateSettings,
    dtype: np.dtype,
) -> list[np.ndarray]:
    """Answers of one batch; `rows` are the prompts' places in the file."""
    seeds = [int(np.random.SeedSequence((settings.seed, sample, row)).generate_state(1)[0]) for row in rows]
    results = generate(
        model,
        prompts,
        Autoregressive(),
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        seed=seeds,
        batch_size=settings.batch_size,
    )
    return [np.asarray(result.tokens, dtype) for result in results]


def _ragged(rows: Sequence[np.ndarray], dtype: np.dtype) -> dict[str, np.ndarray]:
    """Rows of tokens one after the other, and where each begins."""
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return {"tokens": np.concatenate([np.zeros(0, dtype), *rows]), "offsets": offsets}


def _read_part(part: Path, rows: int) -> list[np.ndarray] | None:
    """The answers of a finished batch; None where there are none."""
    try:
        with part.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            tokens, offsets = stored["tokens"], stored["offsets"]
    except FileNotFoundError:
        return None
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{part}: is damaged ({error}): remove it, and it is made anew") from error
    if len(offsets) != rows + 1:
        raise InputError(f"{part}: holds {len(offsets) - 1} answers, not {rows}: remove it, and it is made anew")
    return np.split(tokens, offsets[1:-1])


def _write(file: Path, arrays: dict[str, np.ndarray]) -> None:
    with file_appearing_whole(file) as partial:
        np.savez_compressed(partial, allow_pickle=False, **arrays)
