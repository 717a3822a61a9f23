"""The wheel is whole: installed elsewhere, it works without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment that holds the wheel and borrows only the dependencies of this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, capture_output=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder)})
    # This puts the folder on sys.path, but not what its .pth files name (an editable install of this project).
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.fixture
def run(installed: Path, tmp_path: Path):
    """Runs a program of that environment from a folder that is not the checkout."""
    kept_out = ("PYTHONPATH", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    environment = {key: value for key, value in os.environ.items() if key not in kept_out}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")

    def call(program: str, *arguments: object) -> str:
        command = [installed / "bin" / program, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_contents(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert folders == {"specdiff_jax", "pallas_kernels", "convert", "bench", "configs"}
    assert "configs/demo.json" in names
    assert not [name for name in names if name.startswith("bench/results/")]
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]


def test_packages_come_from_the_wheel(run, installed):
    modules = "convert, pallas_kernels, specdiff_jax"
    paths = run("python", "-c", f"import {modules}\nfor module in {modules}: print(module.__file__)").splitlines()
    assert len(paths) == 3
    assert all(Path(path).is_relative_to(installed) for path in paths)


def test_models(run):
    assert "smollm2" in [json.loads(line)["name"] for line in run("specdiff", "models", "--json").splitlines()]


def test_generate(run, tiny_checkpoint, tmp_path):
    common = ("generate", "--model", tiny_checkpoint, "--method", "autoregressive", "--prompt", "the dog")
    (line,) = run("specdiff", *common, "--max-new-tokens", 4, "--json").splitlines()
    assert json.loads(line)["new_tokens"] == 4
    assert list((tmp_path / "cache" / "specdiff-jax" / "xla").iterdir())  # the next call finds its programs compiled
