"""From `--method` and its flags to a method: the one place where a new method is made known to the command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from specdiff_jax.errors import InputError

if TYPE_CHECKING:
    from specdiff_jax.decode.methods import Method
    from specdiff_jax.loading import Model

MethodName = Literal["autoregressive", "vanilla", "spiffy", "specfold", "dflash"]


@dataclass(frozen=True)
class MethodFlags:
    """Flags that only some methods read; None where not given."""

    drafter: str | None = None
    graph: Path | None = None
    threshold: float | None = None
    delta: float | None = None
    budget: int | None = None
    block_size: int | None = None
    force: bool | None = None


@dataclass(frozen=True)
class _Entry:
    """How a method is made.

    Attributes:
        reads: names of the flags that it reads.
        prepare: from its flags and the name of the model to what makes it, given the loaded model.
    """

    reads: frozenset[str]
    prepare: Callable[[MethodFlags, str], Callable[[Model], Method]]


def _autoregressive(flags: MethodFlags, model: str) -> Method:
    from specdiff_jax.decode.methods import Autoregressive

    return Autoregressive()


def _vanilla(flags: MethodFlags, model: str) -> Method:
    from specdiff_jax.decode.methods import Vanilla

    given = {name: getattr(flags, name) for name in ("threshold", "block_size", "force")}
    if flags.force and flags.block_size is None:
        raise InputError("--force has no effect without --block-size: leave it out")
    return Vanilla(**{name: value for name, value in given.items() if value is not None})


def _spiffy(flags: MethodFlags, model: str) -> Method:
    from specdiff_jax.decode.methods import Spiffy
    from specdiff_jax.draft_graph_file import read_graph

    graph = read_graph(flags.graph or _own_graph(model))
    given = {name: getattr(flags, name) for name in ("budget", "threshold", "force")}
    if flags.threshold is None and graph.key is not None:
        given["threshold"] = graph.key.threshold
    return Spiffy(graph, **{name: value for name, value in given.items() if value is not None})


def _specfold(flags: MethodFlags, model: str) -> Method:
    from specdiff_jax.decode.methods import SpecFold, Spiffy

    spiffy = _spiffy(flags, model)
    assert isinstance(spiffy, Spiffy)
    given = {field.name: getattr(spiffy, field.name) for field in fields(spiffy)}
    return SpecFold(**given) if flags.delta is None else SpecFold(**given, delta=flags.delta)


def _dflash(flags: MethodFlags, model: str) -> Callable[[Model], Method]:
    drafter, block_size = flags.drafter, flags.block_size
    if drafter is None:
        raise InputError(f"method dflash needs a drafter that was made for {model}: give one with --drafter")

    def make(target: Model) -> Method:
        from specdiff_jax.decode.methods import DFlash
        from specdiff_jax.drafter_loading import load_drafter

        return DFlash(load_drafter(drafter, target), block_size)

    return make


def _own_graph(model: str) -> Path:
    """The draft graph that lies in a model's own folder."""
    from convert.resolve import resolve

    path = resolve(model) / "draft_graph.json"
    if not path.is_file():
        raise InputError(
            f"{model} has no draft graph of its own: make one with specdiff calibrate and give it with --graph"
        )
    return path


def _for_any(build: Callable[[MethodFlags, str], Method]) -> Callable[[MethodFlags, str], Callable[[Model], Method]]:
    """For a method that needs no loaded model: it is made, and its flags are checked, before that is waited for."""

    def prepare(flags: MethodFlags, model: str) -> Callable[[Model], Method]:
        method = build(flags, model)
        return lambda target: method

    return prepare


METHODS: dict[MethodName, _Entry] = {
    "autoregressive": _Entry(frozenset(), _for_any(_autoregressive)),
    "vanilla": _Entry(frozenset({"threshold", "block_size", "force"}), _for_any(_vanilla)),
    "spiffy": _Entry(frozenset({"graph", "budget", "threshold", "force"}), _for_any(_spiffy)),
    "specfold": _Entry(frozenset({"graph", "budget", "threshold", "force", "delta"}), _for_any(_specfold)),
    "dflash": _Entry(frozenset({"drafter", "block_size"}), _dflash),
}


def build_method(name: MethodName, flags: MethodFlags, model: str) -> Callable[[Model], Method]:
    """What makes the method called `name`, given the loaded model; all that can be checked before is checked.

    Raises:
        InputError: a flag is given that the method does not read, or one that it needs is missing or out of range.
    """
    entry = METHODS[name]
    for field in fields(flags):
        if getattr(flags, field.name) is not None and field.name not in entry.reads:
            flag = "--" + field.name.replace("_", "-")
            raise InputError(f"{flag} has no effect with --method {name}: leave it out")
    return entry.prepare(flags, model)
