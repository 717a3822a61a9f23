"""Rotary settings of config.json, resolved to frequencies.

The rules are those of Transformers (`modeling_rope_utils`). It computes them in float32, so the same is done here: far
into a text the roundings alone turn an angle by thousandths of a radian, and the weights were trained with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import numpy as np
from jaxtyping import Float32

from specdiff_jax.keys import Keys, shown

RotaryKind = Literal["default", "linear", "llama3", "yarn"]
Frequencies = Float32[np.ndarray, " half"]

# Ministral3's class repeats the model's own limit here; the frequencies come from `factor`, whatever it says.
_IGNORED = frozenset({"max_position_embeddings"})


@dataclass(frozen=True)
class RotaryConfig:
    """Rotary position embedding, already resolved: nothing is left to derive from other keys.

    Attributes:
        kind: the rule that the frequencies come from.
        theta: base of the frequencies.
        inverse_frequencies: angles per position, in radians, one for each pair of numbers that is rotated (head_dim / 2
            where all are); float32 values, largest first.
        attention_factor: multiplier of cos and sin (YaRN's mscale rule; 1.0 for the other kinds).
        query_scale_beta: None, or beta of the Llama-4 rule: rotated queries are multiplied by
            1 + beta * ln(1 + floor(position / original_max_position)).
        original_max_position: positions of the pre-training, for the query scale; None where there is none.
        rule: the section of the config that names the rule, for writing it again; two equal settings may name it
            differently.
    """

    kind: RotaryKind
    theta: float
    inverse_frequencies: tuple[float, ...]
    attention_factor: float = 1.0
    query_scale_beta: float | None = None
    original_max_position: int | None = None
    rule: tuple[tuple[str, Any], ...] = field(default=(), compare=False, repr=False)


def read_rotary(
    keys: Keys,
    head_dim: int,
    *,
    default_theta: float | None = None,
    query_scale: bool = False,
    partial: bool = False,
    nested_theta_wins: bool = False,
) -> RotaryConfig:
    """Rotary settings of a config, from either layout (`rope_theta` + `rope_scaling`, or `rope_parameters`).

    Args:
        keys: the whole config; faults are noted in it, and the result means nothing where there is one.
        head_dim: size of a head, an even number.
        default_theta: base where the config names none; None makes it required.
        query_scale: whether the family knows `llama_4_scaling_beta`.
        partial: whether `partial_rotary_factor` may leave a part of each head as it is; else all of it is rotated.
        nested_theta_wins: whether a `rope_theta` beside the section may differ from the one inside, which is the one
            that counts; else that is a fault.
    """
    keys.agree("rope_parameters", "rope_scaling")
    layout = "rope_parameters" if keys.given("rope_parameters") else "rope_scaling"
    scaling = keys.section(layout)
    kind = _kind(scaling)
    theta = _theta(keys, scaling, default_theta, nested_theta_wins)
    rotated = _rotated_size(keys, scaling, head_dim, partial)
    beta, original = _query_scale(scaling) if query_scale else (None, None)

    attention_factor = 1.0
    with np.errstate(all="ignore"):  # senseless settings end in frequencies that are refused below
        frequencies = 1.0 / _periods(theta, rotated)
        if kind == "linear":
            frequencies = frequencies / np.float32(scaling.number("factor"))
        elif kind == "llama3":
            frequencies = _llama3(frequencies, scaling)
        elif kind == "yarn":
            frequencies, attention_factor = _yarn(theta, rotated, scaling)
    if kind is not None:
        scaling.refuse_unknown(_IGNORED)
    if not keys.faults:
        usable = np.all(np.isfinite(frequencies) & (frequencies > 0)) and np.all(np.diff(frequencies) <= 0)
        keys.require(bool(usable), "gives frequencies that are not positive and falling", layout, "rope_theta")
    angles = tuple(map(float, frequencies))
    rule = tuple(scaling.content().items())
    return RotaryConfig(kind or "default", theta, angles, attention_factor, beta, original, rule)


def _kind(scaling: Keys) -> RotaryKind | None:
    """The rule's name, under its present key or the older `type`; None where it is not supported."""
    scaling.agree("rope_type", "type")
    key = "rope_type" if scaling.given("rope_type") else "type"
    kind = scaling.text(key, "default")
    supported = get_args(RotaryKind)
    scaling.require(kind in supported, f"not supported (supported: {', '.join(supported)})", key)
    return cast(RotaryKind, kind) if kind in supported else None


def _theta(keys: Keys, scaling: Keys, default: float | None, nested_wins: bool) -> float:
    """The base, which either level may name."""
    place = scaling if scaling.given("rope_theta") else keys
    theta = place.number("rope_theta", default)
    place.require(theta > 1.0, "must be greater than 1", "rope_theta")
    if scaling.given("rope_theta") and keys.given("rope_theta") and not nested_wins:
        why = f"must be equal to the other rope_theta, {shown(theta)}"
        keys.require(keys.number("rope_theta") == theta, why, "rope_theta")
    return theta


def _rotated_size(keys: Keys, scaling: Keys, head_dim: int, partial: bool) -> int:
    """How many of a head's numbers are rotated."""
    name = "partial_rotary_factor"
    if not partial:
        for place in (keys, scaling):
            place.only(name, 1.0, "only rotating the whole head (1.0) is supported")
        return head_dim
    place = scaling if scaling.given(name) else keys
    size = place.number(name, 1.0, limit=1.0) * head_dim
    pairs = round(size / 2)
    whole = pairs >= 1 and math.isclose(size, 2 * pairs)
    place.require(whole, f"must give an even whole number of the {head_dim} numbers of a head", name)
    if scaling.given(name) and keys.given(name):
        keys.require(keys.number(name) * head_dim == size, f"must be equal to the other {name}", name)
    return 2 * pairs if whole else head_dim


def _query_scale(scaling: Keys) -> tuple[float | None, int | None]:
    """Beta and the positions of the pre-training, of the Llama-4 rule; Nones where the config has no beta."""
    if not scaling.given("llama_4_scaling_beta"):
        return None, None
    return scaling.number("llama_4_scaling_beta"), scaling.count("original_max_position_embeddings")


def _periods(theta: float, head_dim: int) -> Frequencies:
    """theta ** (2i / head_dim), rounded to float32 where Transformers rounds."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return (theta ** exponents.astype(np.float64)).astype(np.float32)


def _llama3(frequencies: Frequencies, scaling: Keys) -> Frequencies:
    """Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between blended."""
    factor = scaling.number("factor")
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    original = scaling.count("original_max_position_embeddings")
    scaling.require(high > low, "the high factor must be the greater one", "low_freq_factor", "high_freq_factor")
    if scaling.faults:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    scaled = np.where(wavelengths > original / low, frequencies / factor, blended)
    return np.where(wavelengths < original / high, frequencies, scaled)


def _yarn(theta: float, head_dim: int, scaling: Keys) -> tuple[Frequencies, float]:
    """YaRN (arXiv 2309.00071): frequencies and the multiplier of cos and sin.

    The factor is always the config's own, never max_position_embeddings / original_max_position_embeddings: people
    override the former, which would change the frequencies unseen.
    """
    factor = scaling.number("factor")
    original = scaling.count("original_max_position_embeddings")
    beta_fast, beta_slow = scaling.number("beta_fast", 32.0), scaling.number("beta_slow", 1.0)
    truncate = scaling.flag("truncate", True)
    attention_factor = _yarn_attention_factor(factor, scaling)
    scaling.require(beta_fast >= beta_slow, "beta_fast must not be the smaller one", "beta_fast", "beta_slow")
    periods = _periods(theta, head_dim)
    if scaling.faults:
        return periods, attention_factor

    def dimension(rotations: float) -> float:
        """The index whose frequency makes so many rotations within the original positions."""
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(beta_fast), dimension(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    ramp = np.clip((np.arange(periods.size, dtype=np.float32) - low) / width, 0, 1)
    kept = 1 - ramp
    return 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept, attention_factor


def _yarn_attention_factor(factor: float, scaling: Keys) -> float:
    """The config's own, or by the mscale rule, in which a factor up to 1 changes nothing."""
    own = scaling.number("attention_factor") if scaling.given("attention_factor") else None
    mscale, mscale_all_dim = scaling.number("mscale", 1.0), scaling.number("mscale_all_dim", 1.0)
    if own is not None:
        return own
    growth = 0.1 * math.log(max(factor, 1.0))
    if scaling.given("mscale") and scaling.given("mscale_all_dim"):
        return (mscale * growth + 1.0) / (mscale_all_dim * growth + 1.0)
    return growth + 1.0
