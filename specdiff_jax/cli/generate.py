"""`specdiff generate`: answer prompts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdiff_jax.cli.compilation import keep_compiled_programs
from specdiff_jax.cli.methods import MethodFlags, MethodName, build_method
from specdiff_jax.cli.options import PROMPTS_FILE, ChatFlag, DtypeFlag, MaxNewTokensFlag, ModelFlag
from specdiff_jax.cli.output import JsonFlag, note, print_json
from specdiff_jax.errors import InputError

if TYPE_CHECKING:
    from specdiff_jax.decode.generate import Generation
    from specdiff_jax.prompts import PromptEntry


_NOT_PRINTED = ("step_map", "draft_hits", "fold_parent_hits")
"""Of a result: a number a token, or a node of a graph that the line doesn't hold."""


def generate(
    model: ModelFlag,
    method: Annotated[MethodName, typer.Option(help="How to decode.")],
    prompt: Annotated[str | None, typer.Option(help="One prompt.")] = None,
    prompts: Annotated[Path | None, PROMPTS_FILE] = None,
    drafter: Annotated[str | None, typer.Option(help="The drafter of dflash.")] = None,
    graph: Annotated[
        Path | None,
        typer.Option(metavar="GRAPH.json", help="The draft graph of spiffy and specfold [the model's own, if any]."),
    ] = None,
    max_new_tokens: MaxNewTokensFlag = 256,
    threshold: Annotated[
        float | None, typer.Option(help="Confidence at which diffusion fixes a token [the draft graph's, or 0.9].")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Relative residual up to which specfold folds a row.")] = None,
    budget: Annotated[int | None, typer.Option(help="Draft states that are verified together.")] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens of a diffusion block, or of a verification of dflash.")
    ] = None,
    force: Annotated[
        bool | None,
        typer.Option(
            "--force",
            help="Take a block size that the model was not trained for, or a draft graph made for other settings.",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Mass of the nucleus to sample from.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Candidates to sample from; 0 is all.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
    dtype: DtypeFlag = None,
    exact: Annotated[bool, typer.Option("--exact", help="float32 at the baseline's shapes: slow, for proofs.")] = False,
    chat: ChatFlag = None,
    batch_size: Annotated[int, typer.Option(help="Prompts decoded side by side.")] = 1,
    stream: Annotated[bool, typer.Option("--stream", help="Print text while it is made.")] = False,
    tensor_parallel: Annotated[int, typer.Option(help="Devices that the weights are spread over.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Answer prompts. Texts go to stdout, counters to stderr; with --json both, one object a prompt."""
    entries = _entries(prompt, prompts)
    if stream and as_json:
        raise InputError("--stream prints text and --json prints finished results: give one of them")
    if stream and batch_size > 1:
        raise InputError("--stream prints one text at a time: leave out --batch-size")
    flags = MethodFlags(drafter, graph, threshold, delta, budget, block_size, force)
    make_method = build_method(method, flags, model)
    keep_compiled_programs()

    import specdiff_jax as sd

    def show(index: int, result: Generation) -> None:
        identity = entries[index].id
        if as_json:
            row = {key: value for key, value in asdict(result).items() if key not in _NOT_PRINTED}
            print_json(row if identity is None else {"id": identity, **row})
            return
        print("" if stream else result.text, flush=True)
        note(_counters(identity, result))

    target = sd.load(model, dtype=dtype or ("float32" if exact else None), tensor_parallel=tensor_parallel)
    sd.generate(
        target,
        [entry.prompt for entry in entries],
        make_method(target),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        chat=chat,
        exact=exact,
        batch_size=batch_size,
        on_text=(lambda _, piece: print(piece, end="", flush=True)) if stream else None,
        on_result=show,
    )


def _entries(prompt: str | None, prompts: Path | None) -> list[PromptEntry]:
    if (prompt is None) == (prompts is None):
        raise InputError("give either --prompt TEXT or --prompts FILE.jsonl")
    from specdiff_jax.prompts import PromptEntry, read_prompts

    return read_prompts(prompts) if prompts is not None else [PromptEntry(prompt or "")]


def _counters(identity: str | int | None, result: Generation) -> str:
    counts = [
        f"{result.prompt_tokens} prompt tokens",
        f"{result.new_tokens} new tokens",
        f"{result.forwards} forwards",
        f"{result.tokens_per_second:.1f} tokens/s",
    ]
    if result.acceptance_length is not None:
        counts.append(f"acceptance length {result.acceptance_length:.2f}")
    if result.fold_ratio is not None:
        counts.append(f"fold ratio {result.fold_ratio:.2f}")
    counts.append(f"stopped by {result.stop}")
    return ("" if identity is None else f"{identity}: ") + ", ".join(counts)
