"""Compiled programs are kept between calls of the command."""

from __future__ import annotations

import os
from pathlib import Path


def keep_compiled_programs() -> None:
    """Let XLA keep what it compiles under the user's cache folder; call before jax is imported.

    The variables are jax's own, and what the user has set stays: `JAX_ENABLE_COMPILATION_CACHE=false` switches it off.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdiff-jax" / "xla"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
