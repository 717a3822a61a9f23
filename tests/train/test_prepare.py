"""From recipes to packed texts, on any number of processes, and back from disk."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from tiny_recipe import write_recipe

from specdiff_jax.block_spec import block_spec
from specdiff_jax.cli.train import draw_problems
from specdiff_jax.config import parse_config
from specdiff_jax.errors import InputError
from specdiff_jax.text import TextTokenizer
from specdiff_jax.train import shards
from specdiff_jax.train.packing import PackedTexts
from specdiff_jax.train.prepare import prepare
from specdiff_jax.train.prepared import read_prepared, write_prepared
from specdiff_jax.train.recipe import read_recipe

ADAPTED = {"block_size": 8, "mask_token_id": 1}


def assert_same_texts(found: PackedTexts, expected: PackedTexts) -> None:
    for field in fields(PackedTexts):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        np.testing.assert_array_equal(one, other, err_msg=field.name)
        assert np.asarray(one).dtype == np.asarray(other).dtype


def write_rows(path, rows, **more):
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    np.savez(path, tokens=np.concatenate(rows).astype(np.uint16), offsets=offsets, **more)


@pytest.fixture
def stored_recipe(tiny_checkpoint, tmp_path):
    """Writes a recipe that adapts the small Llama to stored tokens."""

    def write(answers=((7, 8, 9, 2), (5, 6), (9, 9, 2)), **changes):
        write_rows(tmp_path / "p.npz", [(3, 4), (5,), (6, 7)])
        write_rows(tmp_path / "r.npz", answers, repeat_pct=np.array([0, 90, 10], np.uint8))
        data = {"source": "tokens", "prompts": "p.npz", "responses": ["r.npz"], "max_repeat_percent": 30, "holdout": 1}
        model = {"init": str(tiny_checkpoint), **ADAPTED}
        recipe = {"model": model, "tokenizer": None, "data": data, "run__width": 16, **changes}
        return read_recipe(write_recipe(tmp_path / "r.toml", **recipe))

    return write


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare(read_recipe(write_recipe(tmp_path_factory.mktemp("recipe") / "r.toml")), draw_problems)


def test_fresh_model(prepared):
    tokenizer = TextTokenizer.from_files(prepared.text_files, "prepared")
    ends = {name: tokenizer.token_id(f"<|{name}|>") for name in ("end", "mask")}
    assert (prepared.config["eos_token_id"], prepared.config["mask_token_id"]) == (ends["end"], ends["mask"])
    assert tokenizer.vocab_size <= prepared.config["vocab_size"] == 512
    texts = prepared.texts
    assert int(texts.segments.max(axis=1).sum()) + texts.dropped == 60
    first = tokenizer.decode(texts.tokens[0][texts.segments[0] == 1].tolist(), skip_special_tokens=False)
    prompt, answer = draw_problems(0, 12)[0]
    assert first.startswith(f"<|user|>{prompt}<|assistant|>{answer}<|end|>")


def test_adapted_model(stored_recipe):
    prepared = prepare(stored_recipe(), draw_problems)
    config = parse_config(prepared.config, "prepared")
    assert (config.family, config.block_size, config.mask_token_id) == ("fast_dllm_v2", 8, 1)
    # The second answer repeats itself, the third is for validation.
    assert prepared.texts.tokens[0, :8].tolist() == [3, 4, 7, 8, 9, 2, 2, 2]
    assert prepared.texts.segments.max() == 1
    assert prepared.validation is not None
    assert prepared.validation.tokens[0, :8].tolist() == [6, 7, 9, 9, 2, 2, 2, 2]


def test_token_beyond_the_vocabulary(stored_recipe):
    with pytest.raises(InputError, match=r"p\.npz: token 400 is not in the model's vocabulary of 290"):
        prepare(stored_recipe(answers=((400, 2), (5, 6), (9, 2))), draw_problems)


def test_mask_that_ends_texts(stored_recipe, tiny_checkpoint):
    model = {"init": str(tiny_checkpoint), "block_size": 8, "mask_token_id": 2}
    with pytest.raises(InputError, match=r"model\.mask_token_id=2: ends a text"):
        prepare(stored_recipe(model=model), draw_problems)


def test_objective_that_the_model_does_not_fit(stored_recipe):
    with pytest.raises(InputError, match="doesn't train a fast_dllm_v2 model"):
        prepare(stored_recipe(objective__name="next_token"), draw_problems)


def test_processes_change_nothing(prepared, monkeypatch):
    monkeypatch.setattr(shards, "SHARD", 4)
    layout = shards.Layout(prepared.text_files, 256, block_spec(parse_config(prepared.config, "prepared")), 0)
    packed = []
    for processors in (1, 2):
        monkeypatch.setattr(shards, "_processors", lambda processors=processors: processors)
        packed.append(shards.pack_drawn(draw_problems, 10, 5, layout))
    assert_same_texts(*packed)
    assert int(packed[0].segments.max(axis=1).sum()) + packed[0].dropped == 50


def test_back_from_disk(prepared, tmp_path):
    write_prepared(prepared, tmp_path)
    found = read_prepared(tmp_path)
    assert_same_texts(found.texts, prepared.texts)
    assert found.validation is None
    assert (found.config, found.text_files) == (prepared.config, prepared.text_files)
    (tmp_path / "texts.npz").write_bytes((tmp_path / "texts.npz").read_bytes()[:1000])
    with pytest.raises(InputError, match=r"texts\.npz: is damaged"):
        read_prepared(tmp_path)
