"""Shapes of published models, bundled as config.json files: for random weights in benchmarks and tests."""

from __future__ import annotations

import json
from importlib.resources import files

from specdiff_jax.config import ModelConfig, parse_config
from specdiff_jax.errors import InputError

_FOLDER = files("configs").joinpath("models")
_SUFFIX = ".json"


def geometry_names() -> tuple[str, ...]:
    """Names of the bundled shapes, sorted."""
    names = (file.name for file in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


def geometry(name: str) -> ModelConfig:
    """Settings of a bundled shape.

    Raises:
        InputError: if there is none of that name.
    """
    if name not in geometry_names():
        raise InputError(f"no geometry {name!r}; there are {', '.join(geometry_names())}")
    file = _FOLDER.joinpath(f"{name}{_SUFFIX}")
    return parse_config(json.loads(file.read_text(encoding="utf-8")), f"configs/models/{name}{_SUFFIX}")
