"""Prompts files."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdiff_jax.errors import InputError
from specdiff_jax.prompts import PromptEntry, read_prompts

CHAT = '{"messages": [{"role": "user", "content": "hi"}]}'


def write(folder: Path, text: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_order_ids_and_kinds_are_kept(tmp_path):
    lines = ['{"id": "b", "prompt": "two\\nlines é"}', "", '{"id": 1, "prompt": "x", "answer": "y"}', CHAT]
    assert read_prompts(write(tmp_path, "\n".join(lines))) == [
        PromptEntry("two\nlines é", "b"),
        PromptEntry("x", 1),
        PromptEntry([{"role": "user", "content": "hi"}], None),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ('"text"', "needs an object"),
        ("{}", 'either "prompt" .* or "messages"'),
        ('{"prompt": "a", "messages": []}', 'either "prompt" .* or "messages"'),
        ('{"prompt": ""}', "at least one character"),
        ('{"prompt": 3}', "must be a text"),
        ('{"messages": []}', "non-empty list"),
        ('{"messages": "hi"}', "non-empty list"),
        ('{"messages": ["hi"]}', "message 0 must be an object"),
        ('{"messages": [{"content": "hi"}]}', '"role"'),
        ('{"messages": [{"role": "user"}]}', 'message 0 must have a textual "content"'),
        ('{"messages": [{"role": "user", "content": null}]}', "message 0 must have"),
        ('{"messages": [{"role": "user", "content": 3}]}', "message 0 must have"),
        ('{"prompt": "a", "id": [1]}', '"id" must be'),
        ('{"prompt": "a", "id": true}', '"id" must be'),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, reason):
    path = write(tmp_path, f'{{"prompt": "fine"}}\n{line}\n')
    with pytest.raises(InputError, match=reason) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(f"{path}, line 2: ")


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="is empty"):
        read_prompts(write(tmp_path, text))


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"absent\.jsonl can't be read"):
        read_prompts(tmp_path / "absent.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"binary\.jsonl can't be read"):
        read_prompts(tmp_path / "binary.jsonl")


@pytest.mark.parametrize("line", ["[" * 100_000, '{"prompt": "x", "id": ' + "9" * 5000 + "}"])
def test_json_beyond_pythons_limits_is_refused(tmp_path, line):
    with pytest.raises(InputError, match="line 1: not JSON"):
        read_prompts(write(tmp_path, line))
