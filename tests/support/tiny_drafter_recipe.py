"""A drafter's recipe whose run takes moments, responses for it, and changes to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tiny_recipe

CONTENT: dict[str, dict[str, Any]] = {
    "model": {
        "target": "target",
        "layers": 2,
        "block_size": 4,
        "mask_token_id": 1,
        "target_layer_ids": [0, 1],
    },
    "data": {"prompts": "prompts.npz", "responses": ["responses.npz"], "max_repeat_percent": 30, "holdout": 2},
    "objective": {"anchors": 8},
    "optimizer": tiny_recipe.CONTENT["optimizer"],
    "run": {
        **tiny_recipe.CONTENT["run"],
        "batch_rows": 4,
        "width": 64,
        "checkpoint_every": 10,
        "keep": 3,
        "features": "online",
    },
}


def write_drafter_recipe(path: Path, **changes: Any) -> Path:
    """Write the recipe; changes are as in `tiny_recipe.write_recipe`."""
    return tiny_recipe.write_sections(path, CONTENT, changes)


def write_responses(folder: Path, responses: list[list[int]], prompt: tuple[int, ...] = (5, 6, 7)) -> None:
    """Prompts of the same three tokens, and a response to each."""
    offsets = np.arange(len(responses) + 1) * len(prompt)
    np.savez(folder / "prompts.npz", tokens=np.tile(prompt, len(responses)), offsets=offsets)
    ends = np.cumsum([0, *map(len, responses)])
    tokens = np.concatenate([np.asarray(ids, np.int64) for ids in responses])
    np.savez(folder / "responses.npz", tokens=tokens, offsets=ends, repeat_pct=np.zeros(len(responses), int))
