"""Where output goes: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON lines and nothing else on stdout.")]


def print_json(value: object) -> None:
    """One JSON line, shown at once."""
    print(json.dumps(value), flush=True)


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Rows with the same keys as a table on stdout, with the keys as its head."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    cells = {key: [_cell(row[key]) for row in rows] for key in rows[0]}
    for key, column in cells.items():
        # Lines are broken between words, as far as the terminal is wide enough for that.
        longest = max(len(word) for text in column for word in text.split() or [""])
        table.add_column(key.replace("_", "\n"), overflow="fold", min_width=longest)
    for line in zip(*cells.values(), strict=True):
        table.add_row(*line)
    Console().print(table)


def note(text: str) -> None:
    """A line about the run itself."""
    print(text, file=sys.stderr, flush=True)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
