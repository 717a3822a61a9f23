"""The command, run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from specdiff_jax.cli import main


@dataclass(frozen=True)
class Outcome:
    """How a run of the command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.stdout.splitlines()]


@pytest.fixture
def specdiff(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Call it with the command's arguments."""

    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(caught.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def refused(specdiff: Callable[..., Outcome]) -> Callable[..., str]:
    """Runs the command, asserts that it refuses in one line, and returns the line."""

    def run(*arguments: object) -> str:
        outcome = specdiff(*arguments)
        assert outcome.code == 2
        assert outcome.stdout == ""
        lines = outcome.stderr.splitlines()
        assert len(lines) == 1, outcome.stderr
        assert lines[0].startswith("specdiff: error: ")
        return lines[0]

    return run
