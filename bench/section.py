"""A measurement in a process of its own, so that one library's GPU memory is free before the next one starts.

As a program (`python -m bench.section MODULE ARGUMENTS RESULT`) it is that process: it calls `measure(**ARGUMENTS)` of
the module and writes what it returns, or why it failed, to the file RESULT.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

STDERR = 2


def measure_apart(module: str, arguments: dict[str, Any], *, seconds: float, flags: str = "") -> dict[str, Any]:
    """What `module.measure(**arguments)` returns in a fresh process, or {"error": one line} where it fails.

    Args:
        module: where the function is.
        arguments: for it, as JSON can hold them.
        seconds: after so many the process, with all that it started, is ended.
        flags: value of XLA_FLAGS there.
    """
    if seconds <= 0:
        return {"error": "not begun: the time limit was reached"}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.section", module, json.dumps(arguments), str(result)],
            stdout=STDERR,  # libraries print where they like; our stdout holds results alone
            env={**os.environ, "XLA_FLAGS": flags},
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return {"error": f"ended after {seconds:.0f} seconds: the time limit was reached"}
        finally:
            _end(process)
        return json.loads(result.read_text()) if result.exists() else {"error": f"the process ended with code {code}"}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it left running (compilers, for one)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def failure(error: Exception) -> dict[str, Any]:
    """What a measurement that failed gives: the error in one line."""
    return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}


def main(module: str, arguments: str, result: str) -> None:
    """Measure, and write the result in one stroke."""
    try:
        measured = import_module(module).measure(**json.loads(arguments))
    except Exception as error:
        traceback.print_exc()
        measured = failure(error)
    partial = Path(f"{result}.partial")
    partial.write_text(json.dumps(measured))
    os.replace(partial, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
