"""From a drafter's name to one that is ready to draft for its target."""

from __future__ import annotations

from dataclasses import dataclass

from flax import nnx

from specdiff_jax.drafter_config import DrafterConfig


@dataclass(frozen=True, eq=False)
class Drafter:
    """A loaded drafter.

    Attributes:
        name: what the user called it.
        config: its settings.
        graphdef: the module (`specdiff_jax.model.drafter.BlockDrafter`) without its weights (static, hashable).
        params: the weights, a pytree; `nnx.merge(graphdef, params)` is the module.
    """

    name: str
    config: DrafterConfig
    graphdef: nnx.GraphDef
    params: nnx.State
