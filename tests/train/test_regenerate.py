"""Regenerated responses: the model's own answers, in the form that training reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdiff_jax as sd
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model
from specdiff_jax.prompts import PromptEntry
from specdiff_jax.train import regenerate as module
from specdiff_jax.train.examples import read_token_files
from specdiff_jax.train.regenerate import RegenerateSettings, regenerate, repeat_percent

# Longest first, so that the order of batches is another one.
ENTRIES = [PromptEntry(text) for text in ("the fox and the dog and the fox", "the dog", "a", "fox fox fox")]
SETTINGS = RegenerateSettings(samples=2, batch_size=2, temperature=1.0, seed=5, max_new_tokens=6)


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path) -> Model:
    return sd.load(tiny_checkpoint, dtype="float32")


def test_greedy_answers_in_the_order_of_the_prompts(model: Model, tmp_path: Path) -> None:
    counts: list[int] = []
    settings = replace(SETTINGS, samples=1, temperature=0.0, batch_size=3)
    prompts, responses = regenerate(model, ENTRIES, tmp_path / "out", settings, on_batch=counts.append)
    assert counts == [3, 4]
    examples, _ = read_token_files(prompts, [responses], 100, 0)
    expected = sd.generate(model, [entry.prompt for entry in ENTRIES], sd.Autoregressive(), max_new_tokens=6)
    assert [example.response for example in examples] == [result.tokens for result in expected]
    assert [len(example.prompt) for example in examples] == [result.prompt_tokens for result in expected]
    assert model.tokenizer is not None
    assert "the fox and the dog and the fox" in model.tokenizer.decode(examples[0].prompt)
    with np.load(responses) as stored:
        assert stored["tokens"].dtype == np.uint16
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "prompts.npz",
        "responses.npz",
        "settings.json",
    ]


def arrays(files: Sequence[Path]) -> list[np.ndarray]:
    found = []
    for file in files:
        with np.load(file) as stored:
            found += [stored[name] for name in sorted(stored)]
    return found


def test_a_stopped_call_goes_on(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = regenerate(model, ENTRIES, tmp_path / "whole", SETTINGS)
    assert [file.name for file in whole] == ["prompts.npz", "responses.npz", "responses_2.npz"]
    first, second = (np.load(file)["tokens"].tolist() for file in whole[1:])
    assert first != second

    def stop(done: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regenerate(model, ENTRIES, tmp_path / "out", SETTINGS, on_batch=stop)
    assert not list((tmp_path / "out").glob("*.npz"))
    with pytest.raises(InputError, match=r"out: was begun with seed=5, not 6"):
        regenerate(model, ENTRIES, tmp_path / "out", replace(SETTINGS, seed=6))
    with pytest.raises(InputError, match=r"out: was begun with prompts="):
        regenerate(model, ENTRIES[1:], tmp_path / "out", SETTINGS)

    answered: list[int] = []

    def counted(model: Model, prompts: Sequence[Sequence[int]], *rest: Any, **flags: Any) -> list[sd.Generation]:
        answered.append(len(prompts))
        return sd.generate(model, prompts, *rest, **flags)

    monkeypatch.setattr(module, "generate", counted)
    files = regenerate(model, ENTRIES, tmp_path / "out", SETTINGS)
    assert answered == [2]
    for found, expected in zip(arrays(files), arrays(whole), strict=True):
        np.testing.assert_array_equal(found, expected)
    regenerate(model, ENTRIES, tmp_path / "out", SETTINGS)
    assert answered == [2]
    files[1].unlink()
    for found, expected in zip(
        arrays(regenerate(model, ENTRIES, tmp_path / "out", SETTINGS)), arrays(whole), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_draws_do_not_depend_on_the_batch(model: Model, tmp_path: Path) -> None:
    alone = regenerate(model, ENTRIES, tmp_path / "alone", replace(SETTINGS, batch_size=1))
    together = regenerate(model, ENTRIES, tmp_path / "together", SETTINGS)
    for found, expected in zip(arrays(together), arrays(alone), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_folder_of_something_else(model: Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exists already and holds no answers to go on with"):
        regenerate(model, ENTRIES, tmp_path, SETTINGS)
    with pytest.raises(InputError, match="exceed the context of 128 tokens"):
        regenerate(model, ENTRIES, tmp_path / "out", replace(SETTINGS, max_new_tokens=127))
    with pytest.raises(InputError, match="top_p"):
        regenerate(model, ENTRIES, tmp_path / "out", replace(SETTINGS, top_p=1.5))
    with pytest.raises(InputError, match="batch_size must be at least 1, not 0"):
        regenerate(model, ENTRIES, tmp_path / "out", replace(SETTINGS, batch_size=0))
    assert not (tmp_path / "out").exists()


def test_repetition() -> None:
    assert repeat_percent([7] * 39) == 0
    assert repeat_percent(list(range(40))) == 0
    assert repeat_percent([7] * 40) == 97  # 32 of 33 runs
    assert repeat_percent([*range(20), *range(20)]) == 39  # 13 of 33


def test_repetition_as_in_published_responses(shared: Path) -> None:
    with np.load(shared / "data" / "smollm2_onpolicy" / "responses.npz") as stored:
        tokens, offsets, percents = stored["tokens"], stored["offsets"], stored["repeat_pct"]
    found = [repeat_percent(row.tolist()) for row in np.split(tokens[: offsets[300]], offsets[1:300])]
    assert found == percents[:300].tolist()
