"""`specdiff calibrate`: make a draft graph."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Annotated

import typer

from specdiff_jax.cli.compilation import keep_compiled_programs
from specdiff_jax.cli.options import PROMPTS_FILE, ChatFlag, DtypeFlag, MaxNewTokensFlag, ModelFlag
from specdiff_jax.cli.output import JsonFlag, print_json


def calibrate(
    model: ModelFlag,
    prompts: Annotated[Path, PROMPTS_FILE],
    budget: Annotated[int, typer.Option(min=1, help="Drafts that are verified together.")],
    out: Annotated[Path, typer.Option(metavar="GRAPH.json", help="The file to make.")],
    threshold: Annotated[float, typer.Option(help="Confidence at which a token is fixed.")] = 0.9,
    max_new_tokens: MaxNewTokensFlag = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded side by side.")] = 1,
    dtype: DtypeFlag = None,
    chat: ChatFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a draft graph from how a diffusion model answers prompts, for spiffy. About 50 prompts are enough."""
    from convert.whole_folder import check_free
    from specdiff_jax.prompts import read_prompts

    check_free(out)
    entries = read_prompts(prompts)
    keep_compiled_programs()

    from rich.console import Console
    from rich.progress import Progress

    import specdiff_jax as sd

    method = sd.Vanilla(threshold)
    target = sd.load(model, dtype=dtype)
    console = Console(stderr=True)
    begin = time.perf_counter()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("answering prompts", total=len(entries))
        graph = sd.calibrate(
            target,
            [entry.prompt for entry in entries],
            method,
            budget=budget,
            max_new_tokens=max_new_tokens,
            chat=chat,
            batch_size=batch_size,
            on_batch=lambda done: progress.update(task, completed=done),
        )
    seconds = time.perf_counter() - begin
    sd.write_graph(graph, out)
    if graph.budget < budget:
        warnings.warn(
            f"the answers hold {graph.budget} drafts, fewer than the budget of {budget}: {out} has only those",
            stacklevel=1,
        )
    summary = {
        "graph": str(out),
        "prompts": len(entries),
        "budget": budget,
        "nodes": graph.budget,
        "depth": graph.depth,
        "content_hash": graph.content_hash,
        "seconds": seconds,
    }
    if as_json:
        print_json(summary)
    else:
        print(f"{out}: {len(entries)} prompts, {graph.budget} nodes on {graph.depth} levels, {seconds:.1f} s")
