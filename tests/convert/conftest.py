"""Fixtures over the small checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_models import save_family


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The saved folder of a family, made once."""
    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp("family")
            save_family(family, folders[family])
        return folders[family]

    return folder


@pytest.fixture
def llama_folder(tmp_path: Path) -> Path:
    """A tied Llama in several shards, free to be damaged."""
    save_family("Llama", tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path
