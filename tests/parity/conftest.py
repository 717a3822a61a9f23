"""The checkpoints of every family, each made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torch_families import Saved


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    """A family's checkpoint by its name in `torch_families.FAMILIES`."""
    pytest.importorskip("torch")
    from torch_families import save

    made: dict[str, Saved] = {}

    def get(family: str) -> Saved:
        if family not in made:
            made[family] = save(family, tmp_path_factory.mktemp("family"))
        return made[family]

    return get
