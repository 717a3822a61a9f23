"""SwiGLU feed-forward, dense and as a mixture of experts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.contraction import contract
from specdiff_jax.config import ModelConfig
from specdiff_jax.model.layers import normal_param


class FeedForward(nnx.Module):
    """down(silu(gate(x)) * up(x)), matrices stored (out, in).

    Gate and up are one matrix, so that a layer reads them in one GEMM; its rows alternate (gate 0, up 0, gate 1, ...),
    so that any split of the rows over devices keeps each gate beside its up.
    """

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        hidden, width = config.hidden_size, config.intermediate_size
        self.gate_up = normal_param(rngs, (2 * width, hidden), dtype)
        self.gate_up_bias = nnx.Param(jnp.zeros((2 * width,), dtype)) if config.mlp_bias else None
        self.down = normal_param(rngs, (hidden, width), dtype)
        self.down_bias = nnx.Param(jnp.zeros((hidden,), dtype)) if config.mlp_bias else None

    def __call__(self, x: Float[Array, "batch rows hidden"]) -> Float[Array, "batch rows hidden"]:
        """Apply to every row."""
        both = contract("bsh,oh->bso", x, self.gate_up[...])
        if self.gate_up_bias is not None:
            both = both + self.gate_up_bias[...]
        out = contract("bsf,hf->bsh", gated(both), self.down[...])
        return out if self.down_bias is None else out + self.down_bias[...]


def gated(both: Float[Array, "*rows two_width"]) -> Float[Array, "*rows width"]:
    """silu(gate) * up of alternating columns (gate 0, up 0, gate 1, ...)."""
    pairs = both.reshape(*both.shape[:-1], -1, 2)
    return jax.nn.silu(pairs[..., 0]) * pairs[..., 1]


def expert_order(
    experts: Int[Array, " slots"], num_experts: int
) -> tuple[Int[Array, " slots"], Int[Array, " num_experts"]]:
    """Each slot's place when slots are grouped by expert, and the group sizes.

    A running count instead of a sort: sorts inside a decode loop cost milliseconds on a GPU.
    """
    chosen = experts[:, None] == jnp.arange(num_experts)
    sizes = chosen.sum(0, dtype=jnp.int32)
    rank = jnp.take_along_axis(jnp.cumsum(chosen, axis=0, dtype=jnp.int32), experts[:, None], axis=1)[:, 0] - 1
    return (jnp.cumsum(sizes) - sizes)[experts] + rank, sizes


class SparseFeedForward(nnx.Module):
    """Mixture of SwiGLU experts with softmax top-k routing (Qwen3-MoE).

    The experts' matrices are (expert, in, out), as `ragged_dot` takes them; gate and up alternate as in `FeedForward`.
    """

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        assert config.moe is not None
        self.moe = config.moe
        experts, hidden, width = self.moe.num_experts, config.hidden_size, self.moe.intermediate_size
        self.router = normal_param(rngs, (experts, hidden), dtype)
        self.gate_up = normal_param(rngs, (experts, hidden, 2 * width), dtype)
        self.down = normal_param(rngs, (experts, width, hidden), dtype)

    def __call__(self, x: Float[Array, "batch rows hidden"]) -> Float[Array, "batch rows hidden"]:
        """Send each row to its top experts and add their outputs, weighted by the router's probabilities."""
        rows = x.reshape(-1, x.shape[-1])
        chosen_per_row = self.moe.experts_per_token
        scores = jax.nn.softmax(contract("rh,eh->re", rows, self.router[...], jnp.float32), axis=-1)
        weights, experts = jax.lax.top_k(scores, chosen_per_row)
        if self.moe.normalize_weights:
            weights = weights / weights.sum(-1, keepdims=True)

        place, sizes = expert_order(experts.reshape(-1), self.moe.num_experts)
        source = jnp.zeros_like(place).at[place].set(jnp.arange(place.size, dtype=place.dtype), unique_indices=True)
        grouped = rows[source // chosen_per_row]
        out = self._ragged(gated(self._ragged(grouped, self.gate_up[...], sizes)), self.down[...], sizes)
        per_choice = out[place].reshape(*weights.shape, -1)
        mixed = jnp.einsum("rk,rkh->rh", weights, per_choice.astype(jnp.float32))
        return mixed.astype(x.dtype).reshape(x.shape)

    @staticmethod
    def _ragged(rows: Array, weight: Array, sizes: Array) -> Array:
        return jax.lax.ragged_dot(rows, weight, sizes, precision=jax.lax.Precision.HIGHEST)
