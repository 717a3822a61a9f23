"""A training run that takes moments: a one-layer model, random texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from flax import nnx
from random_decoder import random_decoder, small_config

from specdiff_jax.train.examples import Example
from specdiff_jax.train.loop import LoopSettings, train
from specdiff_jax.train.objectives import Objective, next_token
from specdiff_jax.train.optimizer import OptimizerSettings
from specdiff_jax.train.packing import PackedTexts, pack
from specdiff_jax.train.programs import make_loss

STOP, WIDTH = 0, 12
CONFIG = small_config(num_layers=1)
SETTINGS = LoopSettings(steps=8, batch_rows=4, seed=1, dtype="float32", log_every=2, checkpoint_every=4, keep=1)
ADAMW = OptimizerSettings(
    name="adamw",
    learning_rate=0.01,
    adam_learning_rate=0.01,
    warmup_steps=2,
    decay="cosine",
    final_fraction=0.1,
    weight_decay=0.1,
    betas=(0.9, 0.95),
    clip_norm=1.0,
)
MUON = replace(ADAMW, name="muon")


def random_texts(count: int = 13, seed: int = 0) -> PackedTexts:
    """Texts of five to nine tokens, one or two a row."""
    generator = np.random.default_rng(seed)
    tokens = [generator.integers(1, CONFIG.vocab_size, generator.integers(4, 9)).tolist() for _ in range(count)]
    return pack([Example(tuple(ids[:2]), (*ids[2:], STOP)) for ids in tokens], WIDTH, None, STOP)


def train_tiny(
    out: Path,
    settings: LoopSettings = SETTINGS,
    optimizer: OptimizerSettings = ADAMW,
    objective: Objective | None = None,
    texts: PackedTexts | None = None,
    validation: PackedTexts | None = None,
) -> dict[str, np.ndarray]:
    """Train in a folder and give the parameters by path."""
    decoder = random_decoder(CONFIG)
    trained = train(
        settings,
        optimizer,
        make_loss(decoder.graphdef, decoder.params, objective or next_token(), settings.dtype),
        decoder.params,
        texts or random_texts(),
        out,
        validation,
    )
    return {".".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(trained)}
