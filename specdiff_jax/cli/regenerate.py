"""`specdiff regenerate`: let a model answer prompts, for a drafter to learn from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdiff_jax.cli.compilation import keep_compiled_programs
from specdiff_jax.cli.options import PROMPTS_FILE, ChatFlag, DtypeFlag, MaxNewTokensFlag, ModelFlag
from specdiff_jax.cli.output import JsonFlag, print_json
from specdiff_jax.cli.train import draw_problems
from specdiff_jax.errors import InputError

if TYPE_CHECKING:
    from specdiff_jax.prompts import PromptEntry


def regenerate(
    model: ModelFlag,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the answers; one that was begun goes on.")],
    prompts: Annotated[Path | None, PROMPTS_FILE] = None,
    problems: Annotated[
        int | None,
        typer.Option(min=1, help="In place of a file: training problems of each generated task."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Answers to each prompt.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts answered side by side.")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Mass of the nucleus to sample from.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Candidates to sample from; 0 is all.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
    max_new_tokens: MaxNewTokensFlag = 256,
    dtype: DtypeFlag = None,
    chat: ChatFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Let an autoregressive model answer prompts and keep the token ids: what `train drafter` learns from."""
    entries = _entries(prompts, problems)
    keep_compiled_programs()

    from rich.console import Console
    from rich.progress import Progress

    import specdiff_jax as sd
    from specdiff_jax.train.regenerate import RegenerateSettings
    from specdiff_jax.train.regenerate import regenerate as answer

    settings = RegenerateSettings(samples, batch_size, temperature, top_p, top_k, seed, max_new_tokens)
    target = sd.load(model, dtype=dtype)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("answering prompts", total=samples * len(entries))
        files = answer(
            target,
            entries,
            out,
            settings,
            chat=chat,
            on_batch=lambda done: progress.update(task, completed=done),
        )
    if as_json:
        print_json({"files": [str(file) for file in files], "prompts": len(entries), "samples": samples})
    else:
        print(*files, sep="\n")


def _entries(prompts: Path | None, problems: int | None) -> list[PromptEntry]:
    from specdiff_jax.prompts import PromptEntry, read_prompts

    if prompts is not None and problems is None:
        return read_prompts(prompts)
    if prompts is None and problems is not None:
        return [PromptEntry(prompt) for prompt, _ in draw_problems(0, problems)]
    raise InputError("give either --prompts FILE.jsonl or --problems N")
