"""The public namespace."""

from __future__ import annotations

import subprocess
import sys

import pytest

import specdiff_jax


def test_every_public_name_is_there():
    assert set(specdiff_jax.__all__) == set(dir(specdiff_jax)) == {*specdiff_jax._HOMES, "__version__"}
    for name in specdiff_jax.__all__:
        assert getattr(specdiff_jax, name) is not None
    assert specdiff_jax.generate.__module__ == "specdiff_jax.decode.generate"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'specdiff_jax' has no attribute 'nonsense'"):
        specdiff_jax.nonsense  # noqa: B018


def test_importing_the_package_does_not_wait_for_jax():
    code = "import sys, specdiff_jax; print(sorted({'jax', 'flax', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
