"""`specdiff profile`: how far drafts are from their parents, in numbers and pictures."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from specdiff_jax.cli.compilation import keep_compiled_programs
from specdiff_jax.cli.methods import MethodFlags, build_method
from specdiff_jax.cli.options import PROMPTS_FILE, ChatFlag, DtypeFlag, MaxNewTokensFlag, ModelFlag
from specdiff_jax.cli.output import JsonFlag, note, print_json
from specdiff_jax.errors import InputError


def profile(
    model: ModelFlag,
    prompts: Annotated[Path, PROMPTS_FILE],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for profile.json and the pictures.")],
    graph: Annotated[
        Path | None, typer.Option(metavar="GRAPH.json", help="The draft graph [the model's own, if any].")
    ] = None,
    delta: Annotated[float, typer.Option(help="Relative residual up to which a row is folded.")] = 0.1,
    max_new_tokens: MaxNewTokensFlag = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded side by side.")] = 1,
    dtype: DtypeFlag = None,
    chat: ChatFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure what specfold would fold: residuals of drafts to their parents by layer, slot and level."""
    from convert.whole_folder import appearing_whole, check_free
    from specdiff_jax.json_file import write_json
    from specdiff_jax.prompts import read_prompts

    check_free(out)
    entries = read_prompts(prompts)
    make_method = build_method("specfold", MethodFlags(graph=graph, delta=delta), model)
    keep_compiled_programs()

    from rich.console import Console
    from rich.progress import Progress

    import specdiff_jax as sd
    from specdiff_jax.decode.profiling import profile as verifications_of
    from specdiff_jax.fold_profile import summarize

    target = sd.load(model, dtype=dtype)
    method = make_method(target)
    assert isinstance(method, sd.SpecFold)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("verifying drafts", total=len(entries))
        seen = list(
            verifications_of(
                target,
                [entry.prompt for entry in entries],
                method,
                max_new_tokens=max_new_tokens,
                chat=chat,
                batch_size=batch_size,
                on_batch=lambda done: progress.update(task, completed=done),
            )
        )
    if not seen:
        raise InputError("the answers give nothing to draft: take more prompts or longer answers")
    summary = {"model": model, "prompts": len(entries), **summarize(seen, delta)}
    with appearing_whole(out) as folder:
        write_json(folder / "profile.json", summary)
        if importlib.util.find_spec("matplotlib") is None:
            note("no pictures, since matplotlib isn't installed: pip install 'specdiff-jax[plot]'")
        else:
            from specdiff_jax.fold_plots import plot_profile

            plot_profile(summary, seen, folder)
    if as_json:
        print_json(summary)
        return
    shares = ", ".join(f"{share:.1%} within {bound}" for bound, share in summary["share_within"].items())
    print(f"{out}: {len(seen)} verifications; residuals: {shares}; folded at {delta}: {summary['fold_ratio']:.1%}")
