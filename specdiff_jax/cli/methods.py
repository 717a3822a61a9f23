"""From `--method` and its flags to a method: the one place where a new method is made known to the command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from specdiff_jax.errors import InputError

if TYPE_CHECKING:
    from specdiff_jax.decode.methods import Method

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
        build: the method from its flags and the name of the model.
    """

    reads: frozenset[str]
    build: Callable[[MethodFlags, str], Method]


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


def _own_graph(model: str) -> Path:
    """The draft graph that lies in a model's own folder."""
    from convert.resolve import resolve

    path = resolve(model) / "draft_graph.json"
    if not path.is_file():
        raise InputError(
            f"{model} has no draft graph of its own: make one with specdiff calibrate and give it with --graph"
        )
    return path


METHODS: dict[str, _Entry] = {
    "autoregressive": _Entry(frozenset(), _autoregressive),
    "vanilla": _Entry(frozenset({"threshold", "block_size", "force"}), _vanilla),
    "spiffy": _Entry(frozenset({"graph", "budget", "threshold", "force"}), _spiffy),
    "specfold": _Entry(frozenset({"graph", "budget", "threshold", "force", "delta"}), _specfold),
}


def build_method(name: MethodName, flags: MethodFlags, model: str) -> Method:
    """The method called `name`.

    Raises:
        InputError: the method is not available, or a flag is given that it does not read.
    """
    if name not in METHODS:
        raise InputError(f"method {name} is not available for {model}: choose {' or '.join(METHODS)}")
    entry = METHODS[name]
    for field in fields(flags):
        if getattr(flags, field.name) is not None and field.name not in entry.reads:
            flag = "--" + field.name.replace("_", "-")
            raise InputError(f"{flag} has no effect with --method {name}: leave it out")
    return entry.build(flags, model)
