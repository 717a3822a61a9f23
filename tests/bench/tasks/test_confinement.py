"""What code that nobody trusts can't do. Every case would pass, or leave a file, if its trick worked."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.tasks.confinement import gives

CALLS, RESULTS = ["f(2)", "f(3)"], ["4", "6"]
HONEST = "def f(x):\n    return 2 * x\n"


def test_honest_code() -> None:
    assert gives(HONEST, CALLS, RESULTS)
    assert gives("print('noise')\ndef f(x):\n    print(x)\n    return x + x", CALLS, RESULTS)


@pytest.mark.parametrize(
    "body",
    [
        "return sorted(['b', 'a'], key=lambda word: word)",
        "return [word.upper() for word in 'a b'.split()]",
        "return {'a': [1.5, None, True, (1,)]}",
        "return max([], default=0), sum(n for n in range(4)), abs(-1), '%d' % 3, f'{2:03d}'",
        "class A:\n        def g(self):\n            return 'x'\n    return A().g()",
        "try:\n        return 1 // 0\n    except ZeroDivisionError as fault:\n        return str(fault)",
        "return 'line\\nbreak', 'a'.encode('utf-8'), 'Ab'.swapcase(), 2 ** 200",
    ],
)
def test_plain_python_works(body: str) -> None:
    code = f"def f():\n    {body}\n"
    names: dict[str, object] = {}
    exec(code, names)
    assert gives(code, ["f()"], [repr(names["f"]())])  # type: ignore[operator]


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    return 2 * x + 1",
        "def f(x):\n    return 4",
        "def f(x):\n    return float(2 * x)",
        "def f(x):\n    return str(2 * x)",
        "def f(x):\n    raise ValueError",
        "def g(x):\n    return 2 * x",
        "def f(x):\n    return 2 * x\nraise ValueError",
        "def f(x) return",
        "",
        "\0'4'\0'6'",
        "\ud800",
    ],
)
def test_wrong_code(code: str) -> None:
    assert not gives(code, CALLS, RESULTS)


ENDINGS = {
    "exit": "raise SystemExit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "os._exit": "import os\nos._exit(0)",
    "posix": "import posix\nposix._exit(0)",
    "in the call": "def f(x):\n    raise SystemExit(0)",
    "fake print": "print('4\\n6')\nprint('ok')\nraise SystemExit(0)",
    "fake output": "import sys\nsys.stdout.write('4\\n6\\n')\nsys.stdout.flush()\nsys.exit(0)",
    "patched repr": f"{HONEST}\nimport builtins\nbuiltins.repr = lambda value: '4'\ndef f(x):\n    return 5",
    "equal to all": "class A(int):\n    __eq__ = lambda self, other: True\ndef f(x):\n    return A(5)",
    "patched eval": "__builtins__['eval'] = lambda *_: 4\ndef f(x):\n    return 5",
}


@pytest.mark.parametrize("code", ENDINGS.values(), ids=ENDINGS)
def test_faked_success(code: str) -> None:
    assert not gives(code, CALLS, RESULTS)


@pytest.mark.parametrize(
    "trick",
    [
        "open(TARGET, 'w').close()",
        "__import__('os').open(TARGET, 64)",
        "__import__('io').FileIO(TARGET, 'w')",
        "__import__('_io').FileIO(TARGET, 'w')",
        "__import__('posix').mkfifo(TARGET)",
        "__import__('os').system('touch ' + TARGET)",
        "__import__('subprocess').run(['touch', TARGET])",
        "__import__('_posixsubprocess')",
        "__import__('socket').socket()",
        "__import__('_socket').socket()",
        "__import__('ctypes')",
        "__import__('threading')",
        "__import__('_thread').start_new_thread(print, ())",
        "__import__('time').sleep(60)",
        "__import__('sys').addaudithook(print)",
        "__import__('_imp').create_builtin",
        "__import__('__main__').main",
        "__import__('resource').setrlimit",
        "__build_class__.__self__.open(TARGET, 'w')",
        "(lambda: None).__code__.co_code",
        "(n for n in ()).gi_frame.f_globals",
        "[c for c in object.__subclasses__() if c.__name__ == 'BuiltinImporter'][0].load_module('posix')",
        "[c for c in object.__subclasses__() if c.__name__ == '_wrap_close'][0].__init__.__globals__['system']('id')",
    ],
)
def test_reaching_out(trick: str, tmp_path: Path) -> None:
    target = tmp_path / "left_behind"
    code = f"TARGET = {str(target)!r}\n{trick}\n{HONEST}"
    assert not gives(code, CALLS, RESULTS)
    assert not target.exists()


def test_refusals_can_be_caught_but_stay(tmp_path: Path) -> None:
    target = tmp_path / "left_behind"
    trick = f"try:\n    open({str(target)!r}, 'w')\nexcept PermissionError:\n    refused = True\n"
    assert gives(trick + HONEST + "    \nassert refused\n", CALLS, RESULTS)
    assert not target.exists()


BOMBS = {
    "loop": "def f(x):\n    while True:\n        try:\n            f(x)\n        except BaseException: 0",
    "memory": "x = bytearray(10 ** 10)\n" + HONEST,
    "growing": "x = []\nwhile True:\n    x.append(bytearray(10 ** 7))",
    "big number": "x = 10 ** 10 ** 9\n" + HONEST,
    "recursion": "def f(x):\n    return f(x)",
    "much output": "def f(x):\n    while True:\n        print('x' * 10 ** 6)",
    "waiting": "input()\n" + HONEST,
}


def test_bombs_end_soon() -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(len(BOMBS)) as pool:
        passed = dict(zip(BOMBS, pool.map(lambda code: gives(code, CALLS, RESULTS), BOMBS.values()), strict=True))
    assert [name for name, success in passed.items() if success] == []
    assert time.monotonic() - began < 30
    assert threading.active_count() < 10


def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gives("def f(x):\n    open('here', 'w')", CALLS, RESULTS)
    assert os.listdir(tmp_path) == []


def test_no_environment_reaches_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("PYTHONSTARTUP", "/nowhere")
    assert gives(HONEST, CALLS, RESULTS)


def test_the_clock_of_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the limits of the process do not hold, the parent ends it."""
    monkeypatch.setattr("bench.tasks.confinement.WALL_SECONDS", 0.3)
    began = time.monotonic()
    assert not gives("while True:\n    pass", CALLS, RESULTS)
    assert time.monotonic() - began < 5
