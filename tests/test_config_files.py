"""Data of this library are found beside it, whatever else is called `configs`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIST = "from convert.resolve import bundled_models; print(*(model.name for model in bundled_models()))"


@pytest.mark.parametrize("package", [False, True], ids=["folder", "package"])
def test_a_project_with_configs_of_its_own(tmp_path: Path, package: bool) -> None:
    (tmp_path / "configs" / "bundled").mkdir(parents=True)
    if package:
        (tmp_path / "configs" / "__init__.py").touch()
    found = subprocess.run([sys.executable, "-c", LIST], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {"pico-ar", "pico-dflash", "pico-fdv2", "pico-nld"} <= set(found.stdout.split())
