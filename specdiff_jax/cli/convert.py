"""`specdiff convert`: write a checkpoint as an Orbax folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specdiff_jax.cli.output import note


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A Hugging Face folder or id, or a GGUF file.")],
    destination: Annotated[Path, typer.Argument(metavar="DESTINATION", help="The folder to make.")],
) -> None:
    """Convert a checkpoint to an Orbax folder. It holds config, tokenizer and weights, and loads fast."""
    from specdiff_jax.conversion import convert_checkpoint

    convert_checkpoint(source, destination)
    note(f"wrote {destination}")
