"""Files of tuned data: `<folder>/<gpu>.json`, to which each run adds what it found."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.environment import Environment
from pallas_kernels.tuned_data import AttentionShape, LayerShape, read_tuned
from specdiff_jax.errors import InputError

LEAST_GAIN = 0.02
"""What an entry saves of the heuristic's time; less could be noise, and the heuristic stands."""


@dataclass(frozen=True)
class Finding:
    """The best of a shape.

    Attributes:
        shape: that was measured.
        best: what was chosen, as a file holds it.
        microseconds: that it takes.
        heuristic: what is chosen without an entry.
        heuristic_microseconds: that it takes.
    """

    shape: AttentionShape | LayerShape
    best: dict[str, Any]
    microseconds: float
    heuristic: dict[str, Any]
    heuristic_microseconds: float

    @property
    def kept(self) -> bool:
        """Whether it becomes an entry."""
        return self.microseconds < (1 - LEAST_GAIN) * self.heuristic_microseconds

    @property
    def entry(self) -> dict[str, Any]:
        """As a file holds it."""
        times = {name: round(getattr(self, name), 3) for name in ("microseconds", "heuristic_microseconds")}
        return {**self.shape._asdict(), **self.best, **times}


def read_file(file: Path) -> dict[str, Any]:
    """The content of a file, which may not exist yet.

    Raises:
        InputError: the file can't be read or breaks a rule of the format.
    """
    if not file.exists():
        return {"attention": [], "capacities": []}
    try:
        read_tuned(file)
    except ValueError as error:
        raise InputError(str(error)) from error
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def add_findings(folder: Path, environment: Environment, findings: Iterable[Finding]) -> Path:
    """Replace the entries of the shapes that were measured, in one stroke; other entries stay.

    The head of the file tells of the newest entries.

    Raises:
        InputError: the file that is there can't be read or breaks a rule of the format.
    """
    file = folder / f"{environment.gpu}.json"
    old, findings = read_file(file), list(findings)
    content = {
        **asdict(environment),
        "attention": _merged(old["attention"], findings, AttentionShape),
        "capacities": _merged(old["capacities"], findings, LayerShape),
    }
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, file)
    return file


def _merged(
    old: list[dict[str, Any]], findings: list[Finding], kind: type[AttentionShape] | type[LayerShape]
) -> list[dict[str, Any]]:
    def shape_of(entry: dict[str, Any]) -> tuple[int, ...]:
        return tuple(entry[name] for name in kind._fields)

    mine = {finding.shape: finding for finding in findings if isinstance(finding.shape, kind)}
    kept = [entry for entry in old if shape_of(entry) not in mine]
    return sorted([*kept, *(finding.entry for finding in mine.values() if finding.kept)], key=shape_of)
