"""From logits to tokens: greedy, temperature, top-k and top-p, with a random stream of its own for every row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from specdiff_jax.errors import InputError

# Beyond these, logits over temperature leave float32 or all look alike.
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-6, 1e6


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sampling:
    """How a token is drawn. Numbers are traced, so another temperature needs no new compilation; `kind` is static.

    Attributes:
        temperature: divides the logits.
        top_p: mass of the nucleus that is kept, after top-k.
        top_k: number of candidates that are kept.
        kind: "greedy" takes the largest logit; "plain" samples all; "filtered" samples what top-k and top-p keep.
    """

    temperature: Float[Array, ""]
    top_p: Float[Array, ""]
    top_k: Int[Array, ""]
    kind: Literal["greedy", "plain", "filtered"] = field(metadata={"static": True})


def sampling(temperature: float, top_p: float, top_k: int, vocab_size: int) -> Sampling:
    """Check the settings and bring them into the form that a compiled loop takes.

    Args:
        temperature: 0 means greedy.
        top_p: in (0, 1]; 1 keeps everything.
        top_k: 0 keeps everything.
        vocab_size: upper limit of `top_k`.

    Raises:
        InputError: a value is out of range.
    """
    if temperature != 0 and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        limits = f"from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
        raise InputError(f"temperature must be 0 (greedy) or a number {limits}, not {temperature}")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p must be above 0 and at most 1, not {top_p}")
    if top_k < 0:
        raise InputError(f"top_k must be 0 (off) or a positive count, not {top_k}")
    kind: Literal["greedy", "plain", "filtered"]
    kind = "greedy" if temperature == 0 else "plain" if top_p == 1 and top_k == 0 else "filtered"
    count = min(top_k, vocab_size) if top_k else vocab_size
    return Sampling(jnp.float32(temperature), jnp.float32(top_p), jnp.int32(count), kind)


def keep_likely(
    logits: Float[Array, "batch vocab"], top_p: Float[Array, ""], top_k: Int[Array, ""]
) -> Float[Array, "batch vocab"]:
    """Logits with everything outside top-k, then outside the nucleus of mass `top_p`, at minus infinity.

    The nucleus is the shortest run of the most likely tokens whose mass reaches `top_p` (Holtzman et al. 2020); tokens
    that tie with the last one kept are kept too.
    """
    ranked = jnp.sort(logits, axis=-1, descending=True)
    ranked = jnp.where(jnp.arange(ranked.shape[-1]) < top_k, ranked, -jnp.inf)
    mass = jax.nn.softmax(ranked, axis=-1)
    before = jnp.cumsum(mass, axis=-1) - mass
    first = jnp.arange(ranked.shape[-1]) == 0  # kept even where top_p is too small for float32
    kept = first | ((before < top_p) & (ranked > -jnp.inf))
    threshold = jnp.min(jnp.where(kept, ranked, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits >= threshold, logits, -jnp.inf)


def without_mask(logits: Float[Array, "*rows vocab"], mask_token_id: int | None) -> Float[Array, "*rows vocab"]:
    """Logits in which the mask of a diffusion model is ruled out: it stands for a token, and is none."""
    if mask_token_id is None:
        return logits
    return jnp.where(jnp.arange(logits.shape[-1]) == mask_token_id, -jnp.inf, logits)


def candidates(logits: Float[Array, "batch vocab"], settings: Sampling) -> Float[Array, "batch vocab"]:
    """Logits of the distribution that tokens are drawn from: over the temperature, and without what is filtered out."""
    if settings.kind == "greedy":
        return logits
    logits = logits / settings.temperature
    return logits if settings.kind == "plain" else keep_likely(logits, settings.top_p, settings.top_k)


def draw(logits: Float[Array, "batch vocab"], settings: Sampling, keys: Key[Array, " batch"]) -> Int[Array, " batch"]:
    """Draw one of the `candidates` a row (Gumbel-max).

    Row b uses `keys[b]` alone, so its draw does not depend on its neighbours.
    """
    if settings.kind != "greedy":
        logits = logits + jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[-1:], jnp.float32))(keys)
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def choose(logits: Float[Array, "batch vocab"], settings: Sampling, keys: Key[Array, " batch"]) -> Int[Array, " batch"]:
    """Draw one token a row from its logits."""
    return draw(candidates(logits, settings), settings, keys)
