"""Gradient transformations by name: AdamW, or Muon for the layers' matrices with AdamW for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from optax.contrib import MuonDimensionNumbers, muon

# Matrices are stored (out, in); those of all layers are stacked.
_MATRICES = MuonDimensionNumbers(reduction_axis=2, output_axis=1)

Parameters: TypeAlias = Mapping[str, Array | jax.ShapeDtypeStruct]
"""By their dotted names."""


@dataclass(frozen=True)
class OptimizerSettings:
    """How gradients become steps.

    Attributes:
        name: "adamw", or "muon" (arXiv 2502.16982).
        learning_rate: the highest one; with Muon that of the layers' matrices, whose steps are orthogonal matrices of
            this size times sqrt(max(1, out / in)).
        adam_learning_rate: the highest one of what Muon leaves to AdamW: embedding, head, norms and biases. With AdamW
            alone it is not used.
        warmup_steps: steps in which the rate rises from 0.
        decay: how it falls over the remaining steps.
        final_fraction: the last rate by the highest one.
        weight_decay: of the layers' matrices and, with AdamW alone, of the head; times the rate.
        betas: AdamW's decay rates of the two moments.
        clip_norm: the longest gradient, over all parameters; longer ones are shortened to it.
    """

    name: Literal["adamw", "muon"]
    learning_rate: float
    adam_learning_rate: float
    warmup_steps: int
    decay: Literal["cosine", "linear"]
    final_fraction: float
    weight_decay: float
    betas: tuple[float, float]
    clip_norm: float


def make_schedule(settings: OptimizerSettings, peak: float, steps: int) -> optax.Schedule:
    """The learning rate of each of `steps` steps: a linear rise to `peak`, then the decay."""
    falling_steps = steps - settings.warmup_steps
    if settings.decay == "cosine":
        falling = optax.cosine_decay_schedule(peak, falling_steps, settings.final_fraction)
    else:
        falling = optax.linear_schedule(peak, peak * settings.final_fraction, falling_steps)
    if settings.warmup_steps == 0:
        return falling
    rising = optax.linear_schedule(0.0, peak, settings.warmup_steps)
    return optax.join_schedules([rising, falling], [settings.warmup_steps])


def make_optimizer(settings: OptimizerSettings, steps: int, params: Parameters) -> optax.GradientTransformation:
    """The transformation for a run of `steps` steps on such parameters, by their dotted names."""
    rate = make_schedule(settings, settings.learning_rate, steps)
    b1, b2 = settings.betas
    if settings.name == "adamw":
        decayed = {name: array.ndim > 1 and name != "embedding" for name, array in params.items()}
        update = optax.adamw(rate, b1=b1, b2=b2, weight_decay=settings.weight_decay, mask=decayed)
    else:
        stacks = _stacks(params)
        update = _on_stacks(
            muon(
                rate,
                weight_decay=settings.weight_decay,
                adam_b1=b1,
                adam_b2=b2,
                adam_learning_rate=make_schedule(settings, settings.adam_learning_rate, steps),
                muon_weight_dimension_numbers={
                    **dict.fromkeys(_alone(params, stacks)),
                    **dict.fromkeys(stacks, _MATRICES),
                },
            ),
            stacks,
        )
    return optax.chain(optax.clip_by_global_norm(settings.clip_norm), update)


def _stacks(params: Parameters) -> dict[str, list[str]]:
    """The layers' matrices that Muon takes, those of one place and shape together; routers and experts stay out."""
    stacks: dict[str, list[str]] = {}
    for name, array in params.items():
        if name.startswith("layers.") and array.ndim == 2 and not name.endswith(".router"):
            _, _, place = name.split(".", 2)
            stacks.setdefault(f"layers.{place} {array.shape}", []).append(name)
    return stacks


def _on_stacks(inner: optax.GradientTransformation, stacks: Mapping[str, list[str]]) -> optax.GradientTransformation:
    """A transformation that sees matrices stacked.

    Muon makes fifteen small products of every matrix; on a GPU those of all layers in one launch take a fraction of the
    time.
    """

    def init(params: optax.Params) -> optax.OptState:
        return inner.init(_stacked(params, stacks))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        assert params is not None, "weight decay needs the parameters"
        found, state = inner.update(_stacked(updates, stacks), state, _stacked(params, stacks))
        for stack, names in stacks.items():
            found |= zip(names, found.pop(stack), strict=True)
        return {name: found[name] for name in updates}, state

    return optax.GradientTransformation(init, update)


def _stacked(arrays: Mapping[str, Any], stacks: Mapping[str, list[str]]) -> dict[str, Any]:
    return _alone(arrays, stacks) | {
        stack: jnp.stack([arrays[name] for name in names]) for stack, names in stacks.items()
    }


def _alone(arrays: Mapping[str, Any], stacks: Mapping[str, list[str]]) -> dict[str, Any]:
    members = {name for names in stacks.values() for name in names}
    return {name: array for name, array in arrays.items() if name not in members}
