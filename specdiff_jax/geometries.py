"""Shapes of published models and drafters, bundled as config.json files: for random weights in benchmarks and tests."""

from __future__ import annotations

import json
from typing import Any

from specdiff_jax.config import ModelConfig, parse_config
from specdiff_jax.config_files import CONFIGS
from specdiff_jax.drafter_config import DrafterConfig
from specdiff_jax.drafter_config_file import parse_drafter_config
from specdiff_jax.errors import InputError

_MODELS, _DRAFTERS = "models", "drafters"
_SUFFIX = ".json"


def geometry_names() -> tuple[str, ...]:
    """Names of the bundled shapes of models, sorted."""
    return _names(_MODELS)


def geometry(name: str) -> ModelConfig:
    """Settings of a model's bundled shape.

    Raises:
        InputError: if there is none of that name.
    """
    return parse_config(*_read(_MODELS, name))


def drafter_geometry_names() -> tuple[str, ...]:
    """Names of the bundled shapes of drafters, sorted."""
    return _names(_DRAFTERS)


def drafter_geometry(name: str) -> DrafterConfig:
    """Settings of a drafter's bundled shape.

    Raises:
        InputError: if there is none of that name.
    """
    return parse_drafter_config(*_read(_DRAFTERS, name))


def _names(kind: str) -> tuple[str, ...]:
    names = (file.name for file in (CONFIGS / kind).iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


def _read(kind: str, name: str) -> tuple[dict[str, Any], str]:
    """The content of a shape's file, and what to call that in messages."""
    if name not in _names(kind):
        raise InputError(f"no geometry {name!r}; there are {', '.join(_names(kind))}")
    file = f"{kind}/{name}{_SUFFIX}"
    return json.loads((CONFIGS / file).read_text(encoding="utf-8")), f"configs/{file}"
