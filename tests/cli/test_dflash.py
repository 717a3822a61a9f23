"""`specdiff generate --method dflash`."""

from __future__ import annotations

from pathlib import Path

import pytest

PROMPTS = ("the dog", "the quick brown fox")


@pytest.fixture
def asked(tiny_checkpoint: Path, tmp_path: Path) -> tuple[object, ...]:
    """The small checkpoint, and some prompts."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'{{"prompt": "{prompt}"}}\n' for prompt in PROMPTS))
    return "generate", "--model", tiny_checkpoint, "--prompts", path, "--max-new-tokens", 20


@pytest.mark.parametrize("flags", [(), ("--exact",), ("--block-size", 4, "--batch-size", 2, "--temperature", 0.8)])
def test_tokens_are_those_of_autoregressive(specdiff, asked, drafter_folder, flags):
    drafted = specdiff(*asked, "--json", "--method", "dflash", "--drafter", drafter_folder, *flags)
    assert drafted.code == 0, drafted.stderr
    others = [flag for flag in flags if flag not in ("--block-size", 4)]
    own = specdiff(*asked, "--json", "--method", "autoregressive", *others)
    for ours, theirs in zip(drafted.rows, own.rows, strict=True):
        assert ours["tokens"] == theirs["tokens"]
        assert ours["acceptance_length"] == (ours["new_tokens"] - 1) / ours["forwards"]
        assert theirs["acceptance_length"] is None


def test_streamed_text_is_the_answer(specdiff, asked, drafter_folder):
    method = ("--method", "dflash", "--drafter", drafter_folder)
    streamed, whole = specdiff(*asked, *method, "--stream"), specdiff(*asked, *method)
    assert streamed.code == 0, streamed.stderr
    assert streamed.stdout == whole.stdout
    assert streamed.stderr.count("acceptance length") == len(PROMPTS)


@pytest.mark.parametrize("size", [0, 1, 9])
def test_block_sizes_out_of_range(refused, asked, drafter_folder, size):
    line = refused(*asked, "--method", "dflash", "--drafter", drafter_folder, "--block-size", size)
    assert "block_size must be from 2 to 8" in line
    assert line.endswith(f"not {size}")


def test_absent_drafter(refused, asked, tmp_path):
    line = refused(*asked, "--method", "dflash", "--drafter", tmp_path / "absent")
    assert f"{tmp_path / 'absent'}: no such file or folder" in line


def test_a_target_is_no_drafter(refused, asked, tiny_checkpoint):
    assert "DFlash" in refused(*asked, "--method", "dflash", "--drafter", tiny_checkpoint)


def test_a_drafter_for_another_target(refused, tiny_diffusion_checkpoint, drafter_folder):
    asked = ("generate", "--model", tiny_diffusion_checkpoint, "--prompt", "a")
    line = refused(*asked, "--method", "dflash", "--drafter", drafter_folder)
    assert "vocab_size 290, but" in line
