"""README tables, written from result files between the markers `<!-- results: NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.dflash_summary import beside_autoregressive, without_drafted
from bench.draft_summary import budgets_side_by_side
from bench.fold_summary import sweep
from bench.forward_summary import beside_vanilla
from bench.kernel_summary import order, side_by_side
from bench.kernels import PRODUCTS, ROW_KERNELS
from bench.results import Row, read_results
from bench.task_summary import summarize
from bench.tasks import TASK_NAMES
from specdiff_jax.errors import InputError

_BEGIN = "<!-- results: "
_SECTION = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class TableSpec:
    """How rows of one result file become a table.

    Attributes:
        file: name of the result file.
        wanted: whether a row belongs in the table.
        order: what rows are sorted by.
        columns: heading, with the unit, and how a cell is filled.
        gather: makes the table's rows from those of the file.
    """

    file: str
    wanted: Callable[[Row], bool]
    order: Callable[[Row], Any]
    columns: dict[str, Callable[[Row], str]]
    gather: Callable[[Iterable[Row]], list[Row]] = list


def _number(key: str, digits: int = 0) -> Callable[[Row], str]:
    return lambda row: "-" if row.get(key) is None else f"{row[key]:,.{digits}f}"


def _result(key: str, digits: int = 0) -> Callable[[Row], str]:
    """The number that was measured, or that this failed; the result file says why."""
    return lambda row: "failed" if "error" in row else _number(key, digits)(row)


def _setting(key: str) -> Callable[[Row], str]:
    return lambda row: str(row["settings"][key])


def _of(row: Row, setting: str) -> Any:
    return row["settings"].get(setting, "-")


def _accuracy(task: str) -> Callable[[Row], str]:
    return lambda row: _share(row["accuracies"].get(task))


def _saved(budget: int) -> Callable[[Row], str]:
    return lambda row: _share(row["saved"].get(budget))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _by(implementation: str) -> Callable[[Row], str]:
    """Of the row of that implementation its microseconds."""
    return lambda row: "-" if implementation not in row["by"] else _result("microseconds", 1)(row["by"][implementation])


def _method(row: Row) -> str:
    flags = row["settings"].get("xla_flags")
    return f"{row['method']} (`{flags}`)" if flags else str(row["method"])


def _decode_order(row: Row) -> Any:
    settings = row["settings"]
    return row["model"], settings["batch"], settings["devices"], row["tokens_per_second"] or 0.0


def _folds(over: str) -> TableSpec:
    """The rows of one sweep of `specdiff bench folds`."""
    return TableSpec(
        file="folds",
        wanted=lambda row: True,
        gather=sweep(over),
        order=lambda row: (
            row["model"],
            row["method"] != "vanilla",
            row["settings"].get("budget", 0),
            row["settings"].get("depth", 0),
            row["settings"].get("delta", -2),
        ),
        columns={
            "model": lambda row: row["model"],
            "method": _method,
            "drafts": lambda row: str(_of(row, "budget")),
            "depth": lambda row: str(_of(row, "depth")),
            "delta": lambda row: str(_of(row, "delta")),
            "answers": _number("problems"),
            "right": lambda row: _share(row["accuracy"]),
            "same tokens as vanilla": lambda row: _share(row["identical_to_baseline"]),
            "forwards saved": lambda row: _share(row["forwards_saved"]),
            "folded rows": lambda row: _share(row["fold_ratio"]),
            "tokens/s": _result("tokens_per_second"),
            "/ vanilla": _number("speedup", 2),
        },
    )


TABLES = {
    "decode": TableSpec(
        file="decode",
        wanted=lambda row: row["task"] == "step",
        order=_decode_order,
        columns={
            "model": lambda row: row["model"],
            "weights": _setting("weights"),
            "batch": _setting("batch"),
            "cache (tokens)": _setting("cache_tokens"),
            "GPUs": _setting("devices"),
            "method": _method,
            "step (µs)": _result("step_microseconds"),
            "tokens/s": _result("tokens_per_second"),
            "reading the weights (µs)": _number("weight_floor_microseconds"),
            "step / reading": _number("ratio_to_floor", 2),
        },
    ),
    "prompts": TableSpec(
        file="decode",
        wanted=lambda row: row["task"] in ("prompts", "random ids"),
        gather=without_drafted,
        order=_decode_order,
        columns={
            "model": lambda row: row["model"],
            "weights": _setting("weights"),
            "batch": _setting("batch"),
            "GPUs": _setting("devices"),
            "method": _method,
            "prompts": _number("problems"),
            "forwards": _number("forwards"),
            "tokens/forward": _number("tokens_per_forward", 2),
            "tokens/s": _result("tokens_per_second"),
        },
    ),
    "tasks": TableSpec(
        file="decode",
        wanted=lambda row: row["task"] in TASK_NAMES,
        gather=summarize,
        order=lambda row: (row["model"], row["method"], str(_of(row, "threshold")), -row["settings"]["batch"]),
        columns={
            "model": lambda row: row["model"],
            "method": _method,
            "threshold": lambda row: str(_of(row, "threshold")),
            "batch": _setting("batch"),
            "problems a task": _number("problems"),
            **{task: _accuracy(task) for task in TASK_NAMES},
            "mean": lambda row: _share(row["mean_accuracy"]),
            "same tokens as vanilla": lambda row: _share(row["identical_to_baseline"]),
            "tokens/forward": _number("tokens_per_forward", 2),
            "tokens/s": _result("tokens_per_second"),
        },
    ),
    "dflash": TableSpec(
        file="decode",
        wanted=lambda row: row["method"] in ("autoregressive", "dflash") and row["task"] != "step",
        gather=beside_autoregressive,
        order=lambda row: (
            row["model"],
            _of(row, "drafter"),
            row["task"],
            str(_of(row, "prompts")),
            row["settings"].get("temperature", 0.0),
            row["settings"]["batch"],
            row["settings"]["block_size"] or 0,
        ),
        columns={
            "model": lambda row: row["model"],
            "drafter": _setting("drafter"),
            "prompts": lambda row: str(row["settings"].get("prompts", row["task"])),
            "answers": _number("problems"),
            "temperature": lambda row: f"{row['settings'].get('temperature', 0):g}",
            "batch": _setting("batch"),
            "block": lambda row: str(row["settings"]["block_size"] or "as trained"),
            "acceptance length": _result("acceptance_length", 2),
            "pooled": _number("pooled_acceptance_length", 2),
            "tokens/s": _result("tokens_per_second"),
            "/ autoregressive": _number("speedup", 2),
            "same tokens": lambda row: _share(row["identical_to_baseline"]),
            "repetitive": lambda row: _share(row["repetitive_share"]),
        },
    ),
    "drafts": TableSpec(
        file="drafts",
        wanted=lambda row: row["method"] == "spiffy",
        gather=budgets_side_by_side,
        order=lambda row: (row["model"], row["settings"]["nodes"]),
        columns={
            "model": lambda row: row["model"],
            "nodes": _setting("nodes"),
            "answers": _number("problems"),
            "same tokens": lambda row: _share(row["identical"]),
            **{f"B = {budget}": _saved(budget) for budget in range(1, 9)},
        },
    ),
    "fold-deltas": _folds("delta"),
    "fold-budgets": _folds("budget"),
    "fold-depths": _folds("depth"),
    "fold-sub-block-cache": _folds("sub_block_cache"),
    "flips": TableSpec(
        file="flips",
        wanted=lambda row: True,
        order=lambda row: (row["model"], row["settings"]["dtype"], row["method"], row["settings"]["batch"]),
        columns={
            "model": lambda row: row["model"],
            "dtype": _setting("dtype"),
            "method": _method,
            "batch": _setting("batch"),
            "answers": _number("problems"),
            "same tokens": lambda row: _share(row["same_answers"]),
            "flips in 1,000 tokens": _number("flips_per_thousand_tokens", 2),
            "right": lambda row: _share(row["accuracy"]),
        },
    ),
    "forward": TableSpec(
        file="forward",
        wanted=lambda row: True,
        gather=beside_vanilla,
        order=lambda row: (row["geometry"], row["branches"], row["path"], row["rows"], row["implementation"]),
        columns={
            "geometry": lambda row: row["geometry"],
            "path": lambda row: row["path"],
            "implementation": lambda row: row["implementation"],
            "branches": _number("branches"),
            "rows": _number("rows"),
            "fold ratio": _number("fold_ratio", 2),
            "capacities": lambda row: str(_of(row, "buckets")),
            "forward (µs)": _result("microseconds"),
            "/ vanilla": _number("ratio_to_vanilla", 2),
            "reading the weights (µs)": _number("weight_floor_microseconds"),
        },
    ),
    "drafting": TableSpec(
        file="drafting",
        wanted=lambda row: True,
        order=lambda row: (row["geometry"], row["width"], row["prefix"]),
        columns={
            "target": lambda row: row["geometry"],
            "width": _number("width"),
            "prefix (tokens)": _number("prefix"),
            "autoregressive (µs)": _result("autoregressive_microseconds"),
            "draft (µs)": _result("draft_microseconds"),
            "verify (µs)": _result("verify_microseconds"),
            "whole cycle (µs)": _result("cycle_microseconds"),
            "(draft + verify) / autoregressive": _number("overhead", 3),
            "of reading the weights": _number("floor_overhead", 3),
        },
    ),
    "kernels": TableSpec(
        file="kernels",
        wanted=lambda row: row["kernel"] in ROW_KERNELS and not row["settings"]["xla_flags"],
        gather=side_by_side("triton"),
        order=order,
        columns={
            "geometry": lambda row: row["geometry"],
            "kernel": lambda row: row["kernel"],
            "rows": _number("rows"),
            "XLA (µs)": _by("xla"),
            "Triton (µs)": _by("triton"),
            "Triton / XLA": _number("ratio", 2),
        },
    ),
    "products": TableSpec(
        file="kernels",
        wanted=lambda row: row["kernel"] in PRODUCTS and not row["settings"].get("xla_flags"),
        gather=side_by_side("cublas"),
        order=order,
        columns={
            "geometry": lambda row: row["geometry"],
            "product": lambda row: row["kernel"],
            "rows": _number("rows"),
            "XLA (µs)": _by("xla"),
            "cuBLAS under a CUDA graph (µs)": _by("cublas"),
            "cuBLAS / XLA": _number("ratio", 2),
            "reading the weights (µs)": _number("weight_floor_microseconds", 1),
        },
    ),
}


def fill(text: str, results: Path) -> str:
    """`text` with every marked section filled from the result files below `results`.

    Raises:
        InputError: a marker names no table or has no end, or a result file is damaged.
    """
    if text.count(_BEGIN) != len(_SECTION.findall(text)):
        raise InputError("a marker <!-- results: NAME --> has no line <!-- end --> after its table")

    def section(match: re.Match[str]) -> str:
        name = match[2]
        if name not in TABLES:
            raise InputError(f"no table {name!r} to put between the markers; there are {', '.join(TABLES)}")
        return match[1] + render(TABLES[name], results) + match[3]

    return _SECTION.sub(section, text)


def render(spec: TableSpec, results: Path) -> str:
    """One table for each GPU that has results, each under a line that says where the numbers come from."""
    parts = []
    for file in sorted(results.glob(f"*/{spec.file}.json")):
        content = read_results(file)
        rows = sorted(spec.gather(filter(spec.wanted, content["rows"])), key=spec.order)
        if rows:
            parts.append(f"{_origin(content['gpu'], rows)}\n\n{_table(spec, rows)}")
    return "\n\n".join(parts) + "\n" if parts else "No results yet.\n"


def _origin(gpu: str, rows: list[Row]) -> str:
    def all_of(key: str) -> str:
        return ", ".join(sorted({str(row["measured"][key]) for row in rows}))

    where = f"`{gpu}`" if gpu == "cpu" else f"`{gpu}`, driver {all_of('driver')}"
    return f"{where}, jax {all_of('jax')}, {all_of('date')}, commit {all_of('commit')}:"


def _table(spec: TableSpec, rows: list[Row]) -> str:
    lines = [list(spec.columns), ["---"] * len(spec.columns)]
    lines += [[_cell(fill_cell, row) for fill_cell in spec.columns.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(fill_cell: Callable[[Row], str], row: Row) -> str:
    return fill_cell(row).replace("|", "\\|")
