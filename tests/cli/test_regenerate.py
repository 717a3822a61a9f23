"""`specdiff regenerate`."""

from __future__ import annotations

import json
from pathlib import Path

from specdiff_jax.train.examples import read_token_files


def test_answers_to_a_file(specdiff, tiny_checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("the fox", "a dog", "the")))
    command = ("regenerate", "--model", tiny_checkpoint, "--prompts", file, "--out", tmp_path / "out")
    settings = ("--max-new-tokens", 4, "--batch-size", 2, "--samples", 2, "--temperature", 1)
    outcome = specdiff(*command, *settings, "--json")
    assert outcome.code == 0, outcome.stderr
    (row,) = outcome.rows
    prompts, *responses = map(Path, row["files"])
    assert (row["prompts"], row["samples"], len(responses)) == (3, 2, 2)
    examples, held_out = read_token_files(prompts, responses, 100, 1)
    assert (len(examples), len(held_out)) == (4, 2)
    again = specdiff(*command, *settings)
    assert (again.code, again.stdout.splitlines()) == (0, row["files"])


def test_problems_of_the_tasks(specdiff, tiny_checkpoint: Path, tmp_path: Path) -> None:
    settings = ("--problems", 1, "--max-new-tokens", 1, "--batch-size", 5)
    outcome = specdiff("regenerate", "--model", tiny_checkpoint, "--out", tmp_path / "out", *settings)
    assert outcome.code == 0, outcome.stderr
    prompts, responses = map(Path, outcome.stdout.splitlines())
    examples, _ = read_token_files(prompts, [responses], 100, 0)
    assert len(examples) == 5


def test_one_source_of_prompts(refused, tiny_checkpoint: Path, tmp_path: Path) -> None:
    line = refused("regenerate", "--model", tiny_checkpoint, "--out", tmp_path / "out")
    assert "give either --prompts FILE.jsonl or --problems N" in line
