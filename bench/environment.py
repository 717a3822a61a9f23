"""Where and from what a result was measured; read without starting jax, which would take the GPU's memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

from pallas_kernels.gpu_name import short_name


@dataclass(frozen=True)
class Environment:
    """What every result file says about itself.

    Attributes:
        command: what was typed.
        gpu: the GPU's name in lower case with dashes (h200), "cpu" without one; names the folder of the results.
        driver: version of the GPU's driver; None without one.
        jax: version of jax.
        date: day of the measurement (UTC).
        commit: of the measured code, with "-dirty" where files differ from it, or "unknown".
    """

    command: str
    gpu: str
    driver: str | None
    jax: str
    date: str
    commit: str


def read_environment(arguments: Sequence[str], commit: str | None) -> Environment:
    """The present environment.

    Args:
        arguments: what was typed after the command's name.
        commit: of the code, where git can't tell.
    """
    gpu, driver = _gpu()
    return Environment(
        command=" ".join(["specdiff", *arguments]),
        gpu=gpu,
        driver=driver,
        jax=version("jax"),
        date=datetime.now(UTC).date().isoformat(),
        commit=commit or _output("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*") or "unknown",
    )


def _gpu() -> tuple[str, str | None]:
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return "cpu", None
    listing = _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if listing is None:
        return "cpu", None
    name, driver = listing.splitlines()[0].rsplit(",", 1)
    return short_name(name), driver.strip()


def _output(*command: str) -> str | None:
    """What a program prints; None where it fails or isn't there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
