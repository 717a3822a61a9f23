"""Scripts that run in a process of their own: on simulated devices, or to measure that process alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]


def run_worker(worker: Path, *arguments: object, devices: int = 1, platform: Literal["cpu", "cuda"] = "cpu") -> Any:
    """Run a script on simulated CPU devices, or on all GPUs, and return the JSON that it prints."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": platform,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # the tests' own process holds most of the memory
    }
    command = [sys.executable, str(worker), *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
