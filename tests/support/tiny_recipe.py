"""A recipe whose run takes moments, and changes to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONTENT: dict[str, dict[str, Any]] = {
    "model": {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "bd_size": 32,
        "max_position_embeddings": 192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
    "tokenizer": {"vocab_size": 512},
    "data": {"source": "tasks", "examples_per_task": 12, "seed": 0},
    "objective": {"name": "fast_dllm_v2"},
    "optimizer": {
        "name": "adamw",
        "learning_rate": 0.01,
        "warmup_steps": 2,
        "decay": "cosine",
        "final_fraction": 0.1,
        "weight_decay": 0.01,
        "betas": [0.9, 0.95],
        "clip_norm": 1.0,
    },
    "run": {
        "steps": 30,
        "batch_rows": 2,
        "width": 192,
        "seed": 0,
        "dtype": "float32",
        "log_every": 10,
        "checkpoint_every": 20,
        "keep": 2,
        "weights": "float32",
    },
}


def write_recipe(path: Path, **changes: Any) -> Path:
    """Write the recipe.

    Args:
        path: the file.
        changes: by section and key with two underscores between them; None leaves a key out. A section alone takes a
            whole table, or None.
    """
    return write_sections(path, CONTENT, changes)


def write_sections(path: Path, sections: Mapping[str, Mapping[str, Any]], changes: Mapping[str, Any]) -> Path:
    """Write sections as TOML, with changes as `write_recipe` has them."""
    content: dict[str, Any] = {section: dict(table) for section, table in sections.items()}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            content[section][key] = value
        else:
            content[section] = value
    lines = []
    for section, table in content.items():
        if table is None:
            continue
        lines.append(f"[{section}]")
        # JSON's numbers, texts, lists and booleans are TOML's.
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
