"""Prompts of published data sets."""

from __future__ import annotations

import gzip
import json

import pytest
from typer.testing import CliRunner

from bench.evaluation import evaluation_prompts
from specdiff_jax.cli.bench import bench
from specdiff_jax.errors import InputError
from specdiff_jax.prompts import PromptEntry

GSM8K = [{"question": "How many?", "answer": "#### 1"}, {"question": "How much?", "answer": "#### 2"}]
HUMANEVAL = [{"task_id": "HumanEval/0", "prompt": "def f():\n", "test": "..."}]
MBPP = [{"task_id": task, "prompt": f"Write function {task}.", "code": "..."} for task in (2, 11, 510, 511)]


@pytest.fixture
def files(tmp_path):
    """A file of each data set, in the layout in which it is published."""
    paths = {name: tmp_path / name for name in ("gsm8k.jsonl", "humaneval.jsonl.gz", "mbpp.json")}
    paths["gsm8k.jsonl"].write_text("".join(json.dumps(item) + "\n" for item in GSM8K))
    paths["humaneval.jsonl.gz"].write_bytes(gzip.compress("\n".join(map(json.dumps, HUMANEVAL)).encode()))
    paths["mbpp.json"].write_text(json.dumps(MBPP))
    return {path.name.split(".")[0]: path for path in paths.values()}


def test_prompts_are_worded_as_in_the_paper_s_benchmarks(files):
    assert evaluation_prompts("gsm8k", files["gsm8k"], 1) == [
        PromptEntry("How many?\nPlease reason step by step, and put your final answer within \\boxed{}.", 0)
    ]
    assert evaluation_prompts("humaneval", files["humaneval"], 1) == [
        PromptEntry(
            "Write a solution to the following problem and make sure that it passes the tests:\n"
            "```python\ndef f():\n\n```",
            "HumanEval/0",
        )
    ]


def test_of_mbpp_the_test_split_is_taken(files):
    entries = evaluation_prompts("mbpp", files["mbpp"], 2)
    assert entries == [PromptEntry("Write function 11.", 11), PromptEntry("Write function 510.", 510)]


def test_the_command_prints_a_prompts_file(files):
    asked = ["prompts", "--source", "gsm8k", "--file", str(files["gsm8k"]), "--count", "2"]
    lines = [json.loads(line) for line in CliRunner().invoke(bench, asked).stdout.splitlines()]
    assert [line["id"] for line in lines] == [0, 1]
    assert lines[1]["prompt"].startswith("How much?\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--source", "gsm8k"), "give its published data with --file"),
        (("--file", "x"), "--file has no effect"),
        (("--source", "gsm8k", "--file", "no.jsonl"), "no.jsonl can't be read"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    outcome = CliRunner().invoke(bench, ["prompts", *arguments])
    assert isinstance(outcome.exception, InputError)
    assert message in str(outcome.exception)


def test_other_files_are_refused(files, tmp_path):
    with pytest.raises(InputError, match=r"is not mbpp as it was published: KeyError 'task_id'"):
        evaluation_prompts("mbpp", files["gsm8k"], 1)
    with pytest.raises(InputError, match="has 2 prompts: ask for no more than that, not 3"):
        evaluation_prompts("mbpp", files["mbpp"], 3)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(files["humaneval"].read_bytes()[:-9])
    with pytest.raises(InputError, match="can't be read"):
        evaluation_prompts("humaneval", cut, 1)
    (tmp_path / "text.jsonl").write_text("no JSON")
    with pytest.raises(InputError, match="is not gsm8k"):
        evaluation_prompts("gsm8k", tmp_path / "text.jsonl", 1)


@pytest.mark.parametrize(("source", "name"), [("gsm8k", "gsm8k_test.jsonl"), ("humaneval", "humaneval.jsonl.gz")])
def test_published_files_are_read(shared, source, name):
    entries = evaluation_prompts(source, shared / "data" / "eval" / name, 64)
    assert len({entry.id for entry in entries}) == 64


def test_published_mbpp_has_its_test_split(shared):
    assert len(evaluation_prompts("mbpp", shared / "data" / "eval" / "mbpp_sanitized.json", 257)) == 257
