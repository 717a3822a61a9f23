"""`specdiff bench`: measure speed, and put the results into the README."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from specdiff_jax.cli.compilation import keep_compiled_programs
from specdiff_jax.cli.output import JsonFlag, note, print_json, print_table
from specdiff_jax.errors import InputError

if TYPE_CHECKING:
    from bench.run import Section, Settings

RESULTS = Path("bench/results")

Dtype = Annotated[Literal["bfloat16", "float32"], typer.Option(help="Of weights and activations.")]
CacheTokens = Annotated[int, typer.Option(min=1, help="Tokens in the cache when the timing begins.")]
Steps = Annotated[int, typer.Option(min=1, help="Steps that are timed in one go.")]
Repeats = Annotated[int, typer.Option(min=1, help="How often they are timed; the median counts.")]
Flags = Annotated[str, typer.Option(help="Added to XLA_FLAGS for our own side.")]
Commit = Annotated[str | None, typer.Option(help="Of the measured code, where git can't tell.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where results go, in a folder named after the GPU.")]
TimeLimit = Annotated[float, typer.Option(min=0, help="Seconds; what is not measured by then is left out.")]

bench = typer.Typer(help="Measure speed, and put the results into the README.")


@bench.command()
def decode(
    geometry: Annotated[
        list[str] | None, typer.Option(help="A bundled shape, with random weights; repeatable.")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="A model with its own weights; repeatable.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Rows side by side; repeatable [1, 32].")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="autoregressive, vanilla or, on models with a draft graph, spiffy, or, with a drafter, dflash (ours), "
            "or, on geometries, transformers-{eager,compiled,max-autotune,generate}; repeatable "
            "[autoregressive, transformers-eager, transformers-compiled]."
        ),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Prompts that each --model answers from end to end.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="A procedural task that each --model answers; repeatable, or all.")
    ] = None,
    problems: Annotated[int, typer.Option(min=1, help="Problems of each task.")] = 500,
    threshold: Annotated[float, typer.Option(help="Confidence at which block diffusion fixes a token.")] = 0.9,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Most new tokens a prompt.")] = 128,
    drafter: Annotated[str | None, typer.Option(help="The drafter of dflash.")] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens of a verification of dflash [the trained one].")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of whole answers; 0 is greedy.")] = 0.0,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs that our side spreads each layer over.")] = 1,
    dtype: Dtype = "bfloat16",
    cache_tokens: CacheTokens = 512,
    steps: Steps = 100,
    repeats: Repeats = 7,
    flags: Flags = "",
    commit: Commit = None,
    out: Out = RESULTS,
    time_limit: TimeLimit = 3600,
    as_json: JsonFlag = False,
) -> None:
    """Time a step of decoding, and whole answers: DIR/<gpu>/decode.json."""
    from bench.decode import DecodeBench, sections
    from bench.run import Settings
    from bench.tasks import TASK_NAMES

    methods = method or ["autoregressive", "transformers-eager", "transformers-compiled"]
    asked = DecodeBench(
        geometry or [],
        model or [],
        batch or [1, 32],
        methods,
        tensor_parallel,
        prompts,
        TASK_NAMES if task == ["all"] else task or [],
        problems,
        threshold,
        max_new_tokens,
        drafter,
        block_size,
        temperature,
    )
    asked.check()
    settings = Settings(dtype, cache_tokens, steps, repeats, flags)
    _run("decode", sections(asked, settings), settings, commit, out, time_limit, as_json)


@bench.command()
def forward(
    geometry: Annotated[list[str], typer.Option(help="A bundled shape; repeatable.")],
    rows: Annotated[list[int] | None, typer.Option(min=1, help="Rows of the block; repeatable [1, 32].")] = None,
    branches: Annotated[
        list[int] | None, typer.Option(min=0, help="Drafts that are verified beside it; repeatable [0].")
    ] = None,
    fold_ratio: Annotated[
        list[float] | None,
        typer.Option(min=0, max=1, help="Share of the drafts' rows that is folded, beside none; repeatable."),
    ] = None,
    buckets: Annotated[
        list[int] | None,
        typer.Option(min=1, help="How many row counts a folded layer is compiled for; repeatable [4]."),
    ] = None,
    implementation: Annotated[
        list[str] | None,
        typer.Option(
            help="Of what stands around the products: xla, pallas or default, the fastest; repeatable [default]."
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Trace the loop, too: by kernel family the share of the GPU's time.")
    ] = False,
    dtype: Dtype = "bfloat16",
    cache_tokens: CacheTokens = 512,
    steps: Steps = 100,
    repeats: Repeats = 7,
    flags: Flags = "",
    commit: Commit = None,
    out: Out = RESULTS,
    time_limit: TimeLimit = 3600,
    as_json: JsonFlag = False,
) -> None:
    """Time a forward of a block of rows against a cache: DIR/<gpu>/forward.json."""
    from bench.forward import IMPLEMENTATIONS, ForwardBench, sections
    from bench.run import Settings
    from specdiff_jax.block_spec import block_spec
    from specdiff_jax.geometries import geometry as shape

    _check_choices("--implementation", implementation or [], IMPLEMENTATIONS)
    for name in geometry:
        config = shape(name)
        if branches and any(branches):
            block_spec(config)
    settings = Settings(dtype, cache_tokens, steps, repeats, flags)
    asked = ForwardBench(
        geometry,
        rows or [1, 32],
        branches or [0],
        fold_ratio or [],
        buckets or [4],
        implementation or ["default"],
        profile,
    )
    _run("forward", sections(asked, settings), settings, commit, out, time_limit, as_json)


@bench.command()
def drafting(
    geometry: Annotated[list[str], typer.Option(help="A target's bundled shape that has a drafter's; repeatable.")],
    width: Annotated[int, typer.Option(help="Tokens of a verification, the drafts among them.")] = 16,
    dtype: Dtype = "bfloat16",
    cache_tokens: CacheTokens = 512,
    steps: Steps = 100,
    repeats: Repeats = 7,
    flags: Flags = "",
    commit: Commit = None,
    out: Out = RESULTS,
    time_limit: TimeLimit = 3600,
    as_json: JsonFlag = False,
) -> None:
    """Time a draft and its verification beside a step of decoding: DIR/<gpu>/drafting.json."""
    from bench.drafting import DraftingBench, sections
    from bench.run import Settings

    asked = DraftingBench(geometry, width)
    settings = Settings(dtype, cache_tokens, steps, repeats, flags)
    asked.check(settings)
    _run("drafting", sections(asked, settings), settings, commit, out, time_limit, as_json)


@bench.command()
def kernels(
    geometry: Annotated[
        list[str] | None, typer.Option(help="A bundled shape of a block-diffusion model; repeatable [all].")
    ] = None,
    count: Annotated[
        list[int] | None,
        typer.Option(help="Computed rows: main's alone, all, or a number between; repeatable [32, 134, 288]."),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a branch.")] = 32,
    branches: Annotated[int, typer.Option(min=0, help="Drafts beside main.")] = 8,
    implementation: Annotated[
        list[str] | None,
        typer.Option(help="xla, triton (the kernel families) or cublas (the products); repeatable [all]."),
    ] = None,
    dtype: Dtype = "bfloat16",
    cache_tokens: CacheTokens = 512,
    steps: Steps = 20,
    repeats: Repeats = 5,
    flags: Flags = "",
    commit: Commit = None,
    out: Out = RESULTS,
    time_limit: TimeLimit = 3600,
    as_json: JsonFlag = False,
) -> None:
    """Time each kernel family and each matrix product of a layer: DIR/<gpu>/kernels.json."""
    from bench.kernels import GEOMETRIES, IMPLEMENTATIONS, KernelBench, sections
    from bench.run import Settings

    _check_choices("--implementation", implementation or [], IMPLEMENTATIONS)
    asked = KernelBench(
        geometry or GEOMETRIES, count or [32, 134, 288], rows, branches, implementation or IMPLEMENTATIONS
    )
    asked.check()
    settings = Settings(dtype, cache_tokens, steps, repeats, flags)
    _run("kernels", sections(asked, settings), settings, commit, out, time_limit, as_json)


@bench.command()
def tune(
    geometry: Annotated[list[str], typer.Option(help="A bundled shape of a block-diffusion model; repeatable.")],
    branches: Annotated[
        list[int] | None, typer.Option(min=1, help="Drafts beside main, which is tuned alone, too; repeatable [8].")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a branch.")] = 32,
    buckets: Annotated[int, typer.Option(min=1, help="How many row counts a folded layer is compiled for.")] = 4,
    cache_tokens: CacheTokens = 512,
    steps: Steps = 20,
    repeats: Repeats = 5,
    commit: Commit = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the file goes [the library, which reads it there].")
    ] = None,
    time_limit: TimeLimit = 3600,
    as_json: JsonFlag = False,
) -> None:
    """Find the tiles of attention and the row counts of a folded layer that are best here: DIR/<gpu>.json."""
    keep_compiled_programs()
    from rich.console import Console
    from rich.progress import Progress

    from bench.environment import read_environment
    from bench.run import Settings
    from bench.tune import TuneBench, table_rows, tune
    from pallas_kernels.tuned_data import FOLDER

    environment = read_environment(_measured_command(sys.argv[1:]), commit)
    asked = TuneBench(geometry, branches or [8], rows, buckets)
    asked.check(environment)
    folder = out or FOLDER
    settings = Settings("bfloat16", cache_tokens, steps, repeats)
    console, table, failed = Console(stderr=True), [], False
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("tuning", total=len(geometry))
        for tuned in tune(asked, settings, environment, folder, time_limit=time_limit):
            progress.advance(task)
            for line in tuned.skipped:
                note(f"{tuned.geometry}: skipped: {line}")
            if tuned.error:
                note(f"{tuned.geometry}: failed: {tuned.error}")
                failed = True
            table += table_rows(tuned)
    if as_json:
        for row in table:
            print_json(row)
    elif table:
        print_table(table)
    note(f"{sum(row['kept'] for row in table)} of {len(table)} kept, in {folder / environment.gpu}.json")
    if failed:
        raise typer.Exit(1)


@bench.command()
def drafts(
    model: Annotated[list[str], typer.Option(help="A block-diffusion model; repeatable.")],
    budget: Annotated[list[int] | None, typer.Option(min=1, help="Numbers of drafts; repeatable [1 to 8].")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Kinds of draft graphs; repeatable [all].")] = None,
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems of each task.")] = 20,
    batch: Annotated[int, typer.Option(min=1, help="Prompts side by side.")] = 20,
    threshold: Annotated[float, typer.Option(help="Confidence at which a token is fixed.")] = 0.9,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most new tokens a prompt.")] = 256,
    dtype: Dtype = "float32",
    commit: Commit = None,
    out: Out = RESULTS,
    as_json: JsonFlag = False,
) -> None:
    """Count the forwards that draft graphs save: DIR/<gpu>/drafts.json."""
    from bench.draft_answers import Questions
    from bench.drafts import KINDS, measure

    _check_choices("--kind", kind or [], KINDS)
    asked = Questions(problems, batch, threshold, max_new_tokens, dtype)

    def line(row: dict[str, Any]) -> str:
        settings = row["settings"]
        about = settings.get("nodes", "vanilla"), settings.get("budget", 0)
        return f"{row['model']}, {about[0]}, budget {about[1]}: {row['forwards_saved']:.1%} saved"

    _measure_all(
        "drafts",
        model,
        lambda name: measure(name, asked, budget or range(1, 9), kind or KINDS),
        line,
        commit,
        out,
        as_json,
    )


@bench.command()
def folds(
    model: Annotated[list[str], typer.Option(help="A block-diffusion model; repeatable.")],
    delta: Annotated[
        list[float] | None, typer.Option(help="Residuals up to which rows are folded, with 8 drafts; repeatable.")
    ] = None,
    budget: Annotated[list[int] | None, typer.Option(min=1, help="Numbers of calibrated drafts; repeatable.")] = None,
    depth: Annotated[
        list[int] | None, typer.Option(min=1, max=7, help="Depths of 7 drafts in chains; repeatable.")
    ] = None,
    buckets: Annotated[int, typer.Option(min=1, help="How many row counts a layer is compiled for.")] = 4,
    attention: Annotated[
        Literal["split", "correct"], typer.Option(help="Of folded rows: directly, or by the paper's correction.")
    ] = "split",
    sub_block_cache: Annotated[
        bool, typer.Option("--sub-block-cache", help="Compute only a sub-block's rows where that is possible.")
    ] = False,
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems of each task.")] = 20,
    batch: Annotated[int, typer.Option(min=1, help="Prompts side by side.")] = 20,
    threshold: Annotated[float, typer.Option(help="Confidence at which a token is fixed.")] = 0.9,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most new tokens a prompt.")] = 256,
    dtype: Dtype = "float32",
    commit: Commit = None,
    out: Out = RESULTS,
    as_json: JsonFlag = False,
) -> None:
    """Measure what folding costs and gives: DIR/<gpu>/folds.json. Without sweeps, all of the SpecFold paper's."""
    from bench.draft_answers import Questions
    from bench.folds import Sweeps, measure

    sweeps = Sweeps(delta or [], budget or [], depth or [])
    if not (sweeps.deltas or sweeps.budgets or sweeps.depths):
        sweeps = Sweeps([-1.0, 0.0, 0.05, 0.1, 0.2, 0.3, 0.5], range(1, 9), range(1, 5))
    asked = Questions(problems, batch, threshold, max_new_tokens, dtype, sub_block_cache)

    def line(row: dict[str, Any]) -> str:
        settings = row["settings"]
        about = "".join(f", {key} {settings[key]}" for key in ("nodes", "budget", "depth", "delta") if key in settings)
        folded = "" if row["fold_ratio"] is None else f", {row['fold_ratio']:.1%} folded"
        return (
            f"{row['model']}, {row['method']}{about}: {row['accuracy']:.1%} right, {row['forwards_saved']:.1%} of "
            f"forwards saved{folded}, {row['tokens_per_second']:.0f} tokens/s"
        )

    _measure_all(
        "folds", model, lambda name: measure(name, asked, sweeps, buckets, attention), line, commit, out, as_json
    )


@bench.command()
def flips(
    model: Annotated[list[str], typer.Option(help="A block-diffusion model with a draft graph; repeatable.")],
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Prompts side by side; repeatable [1, 20].")] = None,
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems of each task.")] = 20,
    threshold: Annotated[float, typer.Option(help="Confidence at which a token is fixed.")] = 0.9,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most new tokens a prompt.")] = 256,
    commit: Commit = None,
    out: Out = RESULTS,
    as_json: JsonFlag = False,
) -> None:
    """Count the tokens that rounding turns, against the exact mode: DIR/<gpu>/flips.json."""
    from bench.flips import FlipBench, measure

    asked = FlipBench(batch or [1, 20], problems, threshold, max_new_tokens)

    def line(row: dict[str, Any]) -> str:
        settings = row["settings"]
        about = f"{row['model']}, {row['method']}, {settings['dtype']}, batch {settings['batch']}"
        return f"{about}: {row['flips_per_thousand_tokens']:.2f} flips in 1,000 tokens"

    _measure_all("flips", model, lambda name: measure(name, asked), line, commit, out, as_json)


@bench.command()
def prompts(
    problems: Annotated[int, typer.Option(min=1, help="Procedural problems of each task.")] = 10,
    split: Annotated[Literal["train", "test"], typer.Option(help="Those that models learn from, or held-out ones.")] = (
        "train"
    ),
    seed: Annotated[int, typer.Option(help="Of the draw; bundled draft graphs were made from 7.")] = 7,
    source: Annotated[
        Literal["procedural", "gsm8k", "humaneval", "mbpp"],
        typer.Option(help="Procedural problems, or the first ones of a published data set."),
    ] = "procedural",
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="The data set as it was published.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Prompts of the data set.")] = 64,
) -> None:
    """Print procedural problems or those of a data set as a prompts file, for bench decode, calibrate and profile."""
    if source == "procedural":
        from bench.tasks import mixed_problems

        if file is not None:
            raise InputError("--file has no effect without --source gsm8k, humaneval or mbpp: leave it out")
        for problem in mixed_problems(split, seed, problems):
            print_json({"prompt": problem.prompt})
        return
    from bench.evaluation import evaluation_prompts

    if file is None:
        raise InputError(f"--source {source} is read from a file: give its published data with --file")
    for entry in evaluation_prompts(source, file, count):
        print_json({"id": entry.id, "prompt": entry.prompt})


@bench.command()
def report(
    readme: Annotated[Path, typer.Option(help="The file with the markers.")] = Path("README.md"),
    results: Annotated[Path, typer.Option(metavar="DIR", help="Where the result files are.")] = RESULTS,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if anything would change.")] = False,
) -> None:
    """Write the README's tables from the result files."""
    from bench.report import fill

    try:
        text = readme.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{readme} can't be read: {error}") from error
    filled = fill(text, results)
    if filled == text:
        note(f"{readme} is what the results say")
    elif check:
        note(f"{readme} is not what the results say: run specdiff bench report")
        raise typer.Exit(1)
    else:
        readme.write_text(filled, encoding="utf-8")
        note(f"wrote {readme}")


@bench.command()
def plot(
    results: Annotated[Path, typer.Option(metavar="DIR", help="Where the result files are.")] = RESULTS,
) -> None:
    """Draw the curves of the result files beside them."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError("plots need matplotlib: pip install 'specdiff-jax[plot]'") from error
    from bench.plot import plot_results

    for file in plot_results(results):
        note(f"wrote {file}")


def _check_choices(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for value in given:
        if value not in known:
            raise InputError(f"{option} {value}: choose from {'; '.join(known)}")


def _measure_all(
    name: str,
    models: Sequence[str],
    measure: Callable[[str], Iterable[dict[str, Any]]],
    line: Callable[[dict[str, Any]], str],
    commit: str | None,
    out: Path,
    as_json: bool,
) -> None:
    """Measure one model after the other in this process; each row is kept and shown at once."""
    from bench.environment import read_environment
    from bench.results import add_rows

    keep_compiled_programs()
    environment = read_environment(_measured_command(sys.argv[1:]), commit)
    for model in models:
        for row in measure(model):
            add_rows(out, name, environment, [row])
            if as_json:
                print_json(row)
            else:
                print(line(row), flush=True)


def _run(
    name: str,
    sections: Sequence[Section],
    settings: Settings,
    commit: str | None,
    out: Path,
    time_limit: float,
    as_json: bool,
) -> None:
    from bench.environment import read_environment
    from bench.run import run_sections

    keep_compiled_programs()
    environment = read_environment(_measured_command(sys.argv[1:]), commit)

    def show(row: dict[str, Any]) -> None:
        if as_json:
            print_json(row)
        else:
            print(_line(row), flush=True)

    note(f"{len(sections)} measurements on {environment.gpu}, into {out / environment.gpu / name}.json")
    rows = run_sections(name, sections, settings, environment, out, time_limit=time_limit, on_row=show)
    if any("error" in row for row in rows):
        raise typer.Exit(1)


def _measured_command(arguments: Sequence[str]) -> list[str]:
    """What was typed without the options that change no number: their values are of one machine and one day."""
    kept, skipped = [], False
    for argument in arguments:
        option, _, value = argument.partition("=")
        if not skipped and option not in ("--out", "--commit", "--time-limit", "--json"):
            kept.append(argument)
        skipped = not skipped and option in ("--out", "--commit", "--time-limit") and not value
    return kept


def _line(row: dict[str, Any]) -> str:
    """What a row is about, and its number."""
    settings = row["settings"]
    if "overhead" in row:
        return _drafting_line(row)
    about = [row.get("model") or row["geometry"], row.get("method") or row.get("path") or row["kernel"]]
    if "batch" in settings:
        about.append(f"batch {settings['batch']}")
    else:
        about += [row["implementation"], f"{row['rows']} rows"]
    if "error" in row:
        return f"{', '.join(about)}: failed: {row['error']}"
    time = row.get("microseconds") or row.get("step_microseconds")
    if time is None and "tokens_per_second" not in row:
        return f"{', '.join(about)}: {settings['implementation']}"
    speed = f"{row['tokens_per_second']:.1f} tokens/s" if time is None else f"{time:.1f} us"
    floor = row.get("weight_floor_microseconds")
    reading = "" if floor is None else f", reading the weights {floor:.1f} us"
    shares = "".join(f", {family} {share:.1%}" for family, share in (row.get("shares") or {}).items())
    length = row.get("acceptance_length")
    accepted = "" if length is None else f", acceptance length {length:.2f}"
    return f"{', '.join(about)}: {speed}{accepted}{reading}, spread {row['spread']:.2f}{shares}"


def _drafting_line(row: dict[str, Any]) -> str:
    """Of a row of `drafting`."""
    about = f"{row['geometry']}, {row['width']} rows"
    if "error" in row:
        return f"{about}: failed: {row['error']}"
    parts = ", ".join(f"{part} {row[f'{part}_microseconds']:.1f} us" for part in ("autoregressive", "draft", "verify"))
    return f"{about}: {parts}, overhead {row['overhead']:.2f}, spread {row['spread']:.2f}"
