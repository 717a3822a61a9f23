"""Decoders whose forwards of branches run through kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from random_decoder import RandomDecoder

from pallas_kernels.triton import attention, launch
from specdiff_jax.model import Decoder


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[RandomDecoder], RandomDecoder]:
    """The same decoder with kernels, which take float32, and are interpreted where there is no GPU."""
    monkeypatch.setattr(launch, "INTERPRET", jax.default_backend() != "gpu")
    monkeypatch.setattr(attention, "supports", lambda *_: True)

    def build(model: RandomDecoder) -> RandomDecoder:
        decoder = nnx.eval_shape(
            lambda: Decoder(model.config, dtype=jnp.float32, rngs=nnx.Rngs(0), implementation="triton")
        )
        return replace(model, graphdef=nnx.graphdef(decoder))

    return build
