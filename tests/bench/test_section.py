"""Measurements in processes of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench.section import measure_apart

MODULE = """
import os, subprocess, sys, time

def measure(what, file=None):
    print("a library's chatter")
    if what == "sleep":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        open(file, "w").write(str(child.pid))
        time.sleep(60)
    if what == "raise":
        raise ValueError("two\\nlines")
    if what == "die":
        os._exit(3)
    return {"flags": os.environ["XLA_FLAGS"]}
"""


@pytest.fixture
def module(tmp_path, monkeypatch) -> str:
    (tmp_path / "measured_here.py").write_text(MODULE)
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(root)]))
    return "measured_here"


def test_the_result_comes_back_and_nothing_reaches_stdout(module, capfd):
    assert measure_apart(module, {"what": "flags"}, seconds=60, flags="--a --b") == {"flags": "--a --b"}
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("what", "error"), [("raise", "ValueError: two lines"), ("die", "the process ended with code 3")]
)
def test_a_failure_is_one_line(module, what, error):
    assert measure_apart(module, {"what": what}, seconds=60) == {"error": error}


def test_the_time_limit_ends_the_process_and_its_children(module, tmp_path):
    file = tmp_path / "pid"
    result = measure_apart(module, {"what": "sleep", "file": str(file)}, seconds=5)
    assert "time limit" in result["error"]
    child = int(file.read_text())
    deadline = time.monotonic() + 10
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(child)


def test_no_time_left():
    assert "time limit" in measure_apart("bench.no_such_module", {}, seconds=0)["error"]


def _runs(process: int) -> bool:
    """Whether it does; one that ended and that nobody has waited for does not."""
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
