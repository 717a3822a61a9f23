"""Running code that a model wrote against given calls, in a subprocess held back by audit hook and limits.

Guarded: files, network, imports, further processes and threads, the environment, CPU time, memory and output
(`bench.tasks.confined`). Not guarded: the memory of that process. Code that corrupts it through a fault of CPython gets
past the hook and has the rights of the user; only the limits hold it then. It is meant for the slips of small models:
for code of an attacker, run all of it in a container or a virtual machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

WALL_SECONDS = 10.0
"""For busy machines: a process takes about 20 ms, and one that never ends is stopped after a second of CPU time."""

_RUNNER = Path(__file__).with_name("confined.py")


def gives(code: str, calls: Sequence[str], results: Sequence[str]) -> bool:
    """Whether the calls return the expected results after `code` has been run.

    The code runs in a process of its own without environment, files, network, imports or further processes, within
    limits of time and memory (`bench.tasks.confined`). It gets only the calls; the results are compared here.

    Args:
        code: Python source that defines what is called; it may be anything at all.
        calls: expressions, trusted.
        results: the `repr` of what each call must return.
    """
    with tempfile.TemporaryDirectory(prefix="specdiff-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", str(_RUNNER)],
                input="\0".join([code, *calls]).encode(errors="replace"),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={},
                timeout=WALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.stdout == "".join(f"{result}\n" for result in results).encode()
