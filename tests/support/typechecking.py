"""How jaxtyping's import hook checks the library while tests run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """`beartype`, except for `__init__`.

    jax rebuilds a registered dataclass by calling it, with shapes or shardings in place of its arrays.
    """
    return function if function.__name__ == "__init__" else beartype(function)
