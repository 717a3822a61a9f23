"""The kernels under NVIDIA's compute-sanitizer: accesses out of range, and races in shared memory.

It runs the GPU tests of `tests/pallas_kernels` at one shape a kernel, with an even and an odd number of computed rows.
Each buffer is an allocation of its own, so that what lies behind its end belongs to nobody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = {"memcheck": ["--padding", str(2**20), "--report-api-errors", "no"], "racecheck": []}
KERNELS = ("plan_rows", "normed_rows", "rotated_heads", "attention", "add_through", "likeliest")
"""Parts of their names; the kernels of XLA and cuBLAS, which compute what is expected, are left alone."""
LEFT_OUT = (
    "xla",
    "correct_state",
    "mesh",
    *("8x6x128", "8x7x128"),
    *(f"bfloat16-{count}" for count in (32, 64, 287, 288)),
)
"""Parts of the names of tests: without our kernels, in a process of their own, of other shapes and numbers of rows."""
ENVIRONMENT = {
    "JAX_PLATFORMS": "",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
    "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer=",
}


def command(tool: str) -> list[str]:
    """The tests under one tool."""
    ours = [argument for name in KERNELS for argument in ("--kernel-name", f"kernel_substring={name}")]
    sanitizer = ["compute-sanitizer", "--tool", tool, "--target-processes", "application-only", "--error-exitcode", "1"]
    names = f"not ({' or '.join(LEFT_OUT)})"
    tests = [sys.executable, "-m", "pytest", "-m", "gpu", "-k", names, "tests/pallas_kernels"]
    return [*sanitizer, *TOOLS[tool], *ours, *tests]


def main() -> int:
    """Run every tool, and tell whether one of them found something."""
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on PATH: add the folder bin of the CUDA toolkit", file=sys.stderr)
        return 2
    environment = {**os.environ, **ENVIRONMENT}
    codes = [subprocess.run(command(tool), cwd=ROOT, env=environment, check=False).returncode for tool in TOOLS]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
