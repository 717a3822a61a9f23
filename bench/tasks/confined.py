"""Runs inside a bare Python (`python -I -S`): calls a function that nobody trusts and sends back what it returned.

Reads the code and the calls from stdin, separated by NUL, and writes the `repr` of every result in a line to stdout.
The right results never come here, so that no trick of the code can make wrong results look right.

What is refused: every event that Python audits (files, sockets, processes, imports, frames, ...) but running code, and
more than the limits below. Modules are emptied, since not every call of theirs is audited; the builtins stay.
"""

from __future__ import annotations

import os
import resource
import sys

CPU_SECONDS = 1
MEMORY_BYTES = 256 << 20
OUTPUT_BYTES = 1 << 16

_LIMITS = {
    resource.RLIMIT_CPU: CPU_SECONDS,
    resource.RLIMIT_AS: MEMORY_BYTES,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NPROC: 0,
    resource.RLIMIT_NOFILE: 0,
}


def _limit_resources() -> None:
    for limit, value in _LIMITS.items():
        try:
            resource.setrlimit(limit, (value, value))
        except (ValueError, OSError):  # macOS does not let every limit be set; the parent's clock is left.
            continue


def _refuse(event: str, _: object) -> None:
    """The audit hook. It uses nothing that the code under test could change."""
    if event not in ("compile", "exec", "builtins.id"):
        raise PermissionError(event)


def _empty_modules() -> None:
    for name, module in list(sys.modules.items()):
        if name not in ("builtins", "sys", "__main__"):
            vars(module).clear()
    sys.modules.clear()


def main() -> None:
    """Confine this process, then run the code and the calls."""
    code, *calls = sys.stdin.buffer.read().decode().split("\0")
    sys.stdin.close()
    write, results = os.write, os.dup(1)
    os.dup2(2, 1)  # The parent has sent stderr to nowhere; what the code prints goes there too.
    _limit_resources()
    sys.addaudithook(_refuse)
    _empty_modules()
    names: dict[str, object] = {}
    exec(code, names)
    write(results, "".join(f"{eval(call, names)!r}\n" for call in calls).encode()[:OUTPUT_BYTES])


if __name__ == "__main__":
    main()
