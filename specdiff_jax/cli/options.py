"""Flags that several commands have."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

ModelFlag = Annotated[str, typer.Option(help="A folder, a Hugging Face id, or a name that `specdiff models` lists.")]
PROMPTS_FILE = typer.Option(metavar="FILE.jsonl", help='Objects with "prompt" or "messages", one a line.')
MaxNewTokensFlag = Annotated[int, typer.Option(help="Most new tokens a prompt.")]
DtypeFlag = Annotated[
    Literal["float32", "bfloat16"] | None,
    typer.Option(help="Of weights and activations; bfloat16 on a GPU and float32 elsewhere by default."),
]
ChatFlag = Annotated[
    bool | None,
    typer.Option("--chat/--raw", help="Put texts through the chat template; done where there is one by default."),
]
