"""Which drafters fit which targets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drafter_files import SETTINGS, TARGET

from specdiff_jax.config import ModelConfig
from specdiff_jax.drafter_config import DrafterConfig, check_pair
from specdiff_jax.drafter_config_file import parse_drafter_config
from specdiff_jax.errors import InputError

CONFIG = parse_drafter_config(SETTINGS, "config.json")


def with_vocabulary(size: int) -> DrafterConfig:
    return replace(CONFIG, backbone=replace(CONFIG.backbone, vocab_size=size))


def test_a_pair() -> None:
    check_pair(CONFIG, TARGET, "drafter", "target")
    check_pair(replace(CONFIG, num_target_layers=None), TARGET, "drafter", "target")
    check_pair(with_vocabulary(0), TARGET, "drafter", "target")
    check_pair(CONFIG, replace(TARGET, family="llama", intermediate_size=8, num_heads=4), "drafter", "target")


@pytest.mark.parametrize(
    ("config", "target", "why"),
    [
        (CONFIG, replace(TARGET, hidden_size=32), "hidden_size 24, but Y has 32"),
        (CONFIG, replace(TARGET, vocab_size=64), "vocab_size 50, but Y has 64"),
        (CONFIG, replace(TARGET, num_layers=7), "num_target_layers 6, but Y has 7"),
        (
            replace(CONFIG, num_target_layers=None),
            replace(TARGET, num_layers=5),
            "target_layer_ids up to 5, but Y has 5 layers",
        ),
        (with_vocabulary(0), replace(TARGET, vocab_size=49), "mask_token_id 49, but Y has 49 tokens"),
        (
            CONFIG,
            replace(TARGET, hidden_size=8, vocab_size=51),
            "hidden_size 24, but Y has 8; vocab_size 50, but Y has 51",
        ),
    ],
)
def test_no_pair(config: DrafterConfig, target: ModelConfig, why: str) -> None:
    with pytest.raises(InputError) as error:
        check_pair(config, target, "X", "Y")
    assert str(error.value) == f"drafter X was made for another target: {why}"
