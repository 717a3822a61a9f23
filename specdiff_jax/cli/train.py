"""`specdiff train`: make a model from a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specdiff_jax.cli.compilation import keep_compiled_programs
from specdiff_jax.cli.output import JsonFlag, note, print_json

train = typer.Typer()


@train.callback()
def _train() -> None:
    """Train a model from a recipe."""


@train.command()
def block_diffusion(
    recipe: Annotated[Path, typer.Option(metavar="RECIPE.toml", help="What to train, on what, how.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the run, which doesn't exist yet.")],
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the recipe's data files are [the recipe's folder].")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out from its newest checkpoint, or begin it.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a block-diffusion model, or the autoregressive one to compare it with; DIR/model is the result."""
    keep_compiled_programs()

    from specdiff_jax.train.log import read_log
    from specdiff_jax.train.loop import LOG, NonFiniteLossError
    from specdiff_jax.train.recipe import read_recipe
    from specdiff_jax.train.run import run

    try:
        model = run(read_recipe(recipe, data), out, draw=draw_problems, resume=resume, note=note)
    except NonFiniteLossError as error:
        note(f"training stopped at {error}")
        raise typer.Exit(1) from None
    last = read_log(out / LOG)[-1]
    if as_json:
        print_json({"model": str(model), "steps": last["step"], "loss": last["loss"], "seconds": last["seconds"]})
    else:
        print(model)


def draw_problems(seed: int, count: int) -> list[tuple[str, str]]:
    """Prompts and worked answers: `count` training problems of every task, the tasks in turn."""
    from bench.tasks import TASK_NAMES, problems

    by_task = [problems(task, "train", seed, count) for task in TASK_NAMES]
    return [(problem.prompt, problem.answer) for turn in zip(*by_task, strict=True) for problem in turn]
