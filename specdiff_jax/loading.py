"""From a checkpoint's name to a model that is ready to decode."""

from __future__ import annotations

from dataclasses import dataclass

from flax import nnx
from jax.sharding import Mesh

from specdiff_jax.config import ModelConfig
from specdiff_jax.text import TextTokenizer


@dataclass(frozen=True)
class Model:
    """A loaded target.

    Attributes:
        name: what the user called it.
        config: its settings.
        graphdef: the decoder without its weights (static, hashable).
        params: the weights, a pytree; `nnx.merge(graphdef, params)` is the module.
        tokenizer: text to ids and back.
        stop_ids: ids that end a text (from generation_config.json and config.json).
        mesh: the devices that the weights are spread over; None for one device.
    """

    name: str
    config: ModelConfig
    graphdef: nnx.GraphDef
    params: nnx.State
    tokenizer: TextTokenizer
    stop_ids: tuple[int, ...]
    mesh: Mesh | None = None
