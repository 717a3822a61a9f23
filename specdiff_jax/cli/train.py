"""`specdiff train`: make a model from a recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from specdiff_jax.cli.compilation import keep_compiled_programs
from specdiff_jax.cli.output import JsonFlag, note, print_json

train = typer.Typer()


@train.callback()
def _train() -> None:
    """Train a model from a recipe."""


RecipeFlag = Annotated[Path, typer.Option(metavar="RECIPE.toml", help="What to train, on what, how.")]
OutFlag = Annotated[Path, typer.Option(metavar="DIR", help="The folder of the run, which doesn't exist yet.")]
DataFlag = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where the recipe's data files are [the recipe's folder].")
]
ResumeFlag = Annotated[
    bool, typer.Option("--resume", help="Go on with the run in --out from its newest checkpoint, or begin it.")
]


@train.command()
def block_diffusion(
    recipe: RecipeFlag, out: OutFlag, data: DataFlag = None, resume: ResumeFlag = False, as_json: JsonFlag = False
) -> None:
    """Train a block-diffusion model, or the autoregressive one to compare it with; DIR/model is the result."""
    keep_compiled_programs()

    from specdiff_jax.train.recipe import read_recipe
    from specdiff_jax.train.run import run

    _report(lambda: run(read_recipe(recipe, data), out, draw=draw_problems, resume=resume, note=note), out, as_json)


@train.command()
def drafter(
    recipe: RecipeFlag,
    out: OutFlag,
    data: DataFlag = None,
    resume: ResumeFlag = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Replace a setting of the recipe; may come again."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a DFlash drafter for an autoregressive model on that model's own responses; DIR/model is the result."""
    keep_compiled_programs()

    from specdiff_jax.train.drafter_recipe import read_drafter_recipe
    from specdiff_jax.train.drafter_run import run_drafter

    read = read_drafter_recipe(recipe, data, changes or ())
    _report(lambda: run_drafter(read, out, resume=resume, note=note), out, as_json)


_LAST = {"steps": "step", "loss": "loss", "seconds": "seconds"}
"""What is told of the last line of the log, and its columns there."""


def _report(run: Callable[[], Path], out: Path, as_json: bool) -> None:
    """Train, and say where the model is and how training ended."""
    from specdiff_jax.train.log import read_log
    from specdiff_jax.train.loop import LOG, NonFiniteLossError

    try:
        model = run()
    except NonFiniteLossError as error:
        note(f"training stopped at {error}")
        raise typer.Exit(1) from None
    if as_json:
        rows = read_log(out / LOG) if (out / LOG).is_file() else []  # of a finished run somebody may have removed it
        last = rows[-1] if rows else {}
        print_json({"model": str(model), **{key: last.get(name) for key, name in _LAST.items()}})
    else:
        print(model)


def draw_problems(seed: int, count: int) -> list[tuple[str, str]]:
    """Prompts and worked answers: `count` training problems of every task, the tasks in turn."""
    from bench.tasks import TASK_NAMES, problems

    by_task = [problems(task, "train", seed, count) for task in TASK_NAMES]
    return [(problem.prompt, problem.answer) for turn in zip(*by_task, strict=True) for problem in turn]
