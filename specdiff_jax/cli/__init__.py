"""The command `specdiff`: one file a command; here is what they share, which is how they end.

Exit codes: 0 done, 1 the thing asked for failed, 2 bad input. Bad input is one line on stderr, never a traceback.
Nothing that takes time to import (jax) is imported before a command runs, so that help is quick.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from specdiff_jax import __version__
from specdiff_jax.cli import bench, calibrate, check, convert, demo, generate, models, profile, regenerate, train
from specdiff_jax.errors import InputError

BAD_INPUT = 2

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
for command in (
    demo.demo,
    models.models,
    generate.generate,
    convert.convert,
    check.check,
    calibrate.calibrate,
    profile.profile,
    regenerate.regenerate,
):
    app.command()(command)
app.add_typer(bench.bench, name="bench")
app.add_typer(train.train, name="train")


def _show_version(wanted: bool) -> bool:
    if wanted:
        print(f"specdiff {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def specdiff(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Speculative decoding between diffusion and language models, in JAX."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command on `arguments` (those of the process by default) and exit."""
    warnings.formatwarning = _one_line
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="specdiff", standalone_mode=False)
    except InputError as error:
        _refuse(str(error))
    except typer.TyperException as error:  # what was typed is no command of ours
        context = getattr(error, "ctx", None)
        path = "specdiff" if context is None else context.command_path
        _refuse(f"{error.format_message().rstrip('.')}; see {path} --help")
    except typer.Abort:
        sys.exit(130)
    sys.exit(code or 0)


def _one_line(message: Warning | str, *_: object, **__: object) -> str:
    """A warning as the command shows it: without the place in the code."""
    return f"specdiff: warning: {' '.join(str(message).split())}\n"


def _refuse(message: str) -> NoReturn:
    print("specdiff: error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(BAD_INPUT)
