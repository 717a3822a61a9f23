"""SmolLM2 from its package's GGUF, against a converter that shares no code with this library."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tiny_models import assert_same, expected_params, load_params

from convert.checkpoint import Checkpoint, open_checkpoint
from convert.resolve import resolve
from specdiff_jax.config import parse_config, read_config
from specdiff_jax.text import TextTokenizer

TEXTS = ["12 + 345 = 357", "Room 404, floor 2a; year 1999.", "no digits at all", "  two  spaces\n\n10007"]


@pytest.fixture(scope="module")
def checkpoint(smollm2: str) -> Checkpoint:
    return open_checkpoint(resolve(smollm2))


def test_weights(checkpoint: Checkpoint, shared: Path) -> None:
    tool = shared / "tools" / "smollm2.py"
    spec = importlib.util.spec_from_file_location("smollm2_tool", tool)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    bits = module.load_weights(str(checkpoint.path))
    assert len(bits) == 272
    config = parse_config(checkpoint.config, checkpoint.config_location)
    expected = expected_params({name: array.view(ml_dtypes.bfloat16) for name, array in bits.items()}, config)
    assert_same(load_params(checkpoint, "bfloat16"), expected)


def test_weights_are_not_rounded_to_bfloat16_before_float32(checkpoint: Checkpoint) -> None:
    values = checkpoint.tensors.read("model.layers.0.mlp.up_proj.weight")
    assert values.dtype == np.float32
    assert not np.array_equal(values, values.astype(ml_dtypes.bfloat16))


def test_settings(checkpoint: Checkpoint, smollm2_folder: Path) -> None:
    assert parse_config(checkpoint.config, "gguf") == read_config(smollm2_folder)


def test_token_ids(checkpoint: Checkpoint, smollm2_folder: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm2_folder)
    ours = TextTokenizer.from_files(checkpoint.text_files, "gguf")
    messages = [{"role": "user", "content": "What is 12 times 12?"}]
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.encode("1234") == [ours.token_id(digit) for digit in "1234"]
    assert ours.encode_chat(messages) == theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
