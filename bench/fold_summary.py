"""The rows of one sweep, each beside the vanilla row of the same questions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from bench.folds import USUAL_BUCKETS, USUAL_BUDGET, USUAL_DELTA
from bench.results import Row

_ASKED = ("batch", "threshold", "max_new_tokens", "dtype", "sub_block_cache")
"""Settings of what is asked; the others are of the methods."""


def in_sweep(row: Row, over: str) -> bool:
    """Whether a row of `folds.json` belongs to a sweep, over "delta", "budget", "depth" or "sub_block_cache"."""
    settings = row["settings"]
    cached = bool(settings.get("sub_block_cache"))
    if cached or over == "sub_block_cache":
        return cached and over == "sub_block_cache"
    if row["method"] == "vanilla":
        return True
    if (settings.get("attention", "split"), settings.get("buckets", USUAL_BUCKETS)) != ("split", USUAL_BUCKETS):
        return False
    if over == "delta":
        return bool(settings["nodes"] == "sets" and settings["budget"] == USUAL_BUDGET)
    usual = settings.get("delta", USUAL_DELTA) == USUAL_DELTA
    return usual and bool(settings["nodes"] == ("sets" if over == "budget" else "chains"))


def sweep(over: str) -> Callable[[Iterable[Row]], list[Row]]:
    """A gatherer of rows: of each model, the run with the most points of the sweep.

    They gain `speedup`, their tokens/s over those of vanilla decoding with the same questions.
    """

    def gather(rows: Iterable[Row]) -> list[Row]:
        runs: dict[Hashable, list[Row]] = {}
        for row in rows:
            if in_sweep(row, over):
                asked = tuple(row["settings"].get(name) for name in _ASKED)
                runs.setdefault((row["model"], row["problems"], asked), []).append(row)
        widest: dict[str, list[Row]] = {}
        for run in sorted(runs.values(), key=lambda run: (_points(run, over), run[0]["problems"])):
            if _points(run, over) > 1:
                widest[run[0]["model"]] = run
        return [_beside_vanilla(row, run) for run in widest.values() for row in run]

    return gather


def _points(run: Iterable[Row], over: str) -> int:
    name = "delta" if over == "sub_block_cache" else over
    return len({row["settings"][name] for row in run if name in row["settings"]})


def _beside_vanilla(row: Row, run: Iterable[Row]) -> Row:
    vanilla = next((other["tokens_per_second"] for other in run if other["method"] == "vanilla"), None)
    return {**row, "speedup": None if vanilla is None else row["tokens_per_second"] / vanilla}
