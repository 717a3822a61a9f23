"""The DFlash drafter (arXiv 2602.06036): it fills a block of masked slots in one forward.

Features of the target's context are fused and normed once; every layer makes keys and values of them with its own
projections, so that they take part in attention and in nothing else. The block's rows stand at absolute positions right
behind the context and see it and each other.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.contraction import contract
from pallas_kernels.feed_forward import add_through
from pallas_kernels.implementation import Implementation
from pallas_kernels.projection import normed_rows
from pallas_kernels.triton.projection import rotated_heads
from specdiff_jax.drafter_config import DraftAttention, DrafterConfig
from specdiff_jax.model.attention import Attention, LayerCache, Visible, attend
from specdiff_jax.model.branch_attention import BranchRows, attend_rotated, score_scale
from specdiff_jax.model.cache import KVCache, write
from specdiff_jax.model.decoder import Decoder
from specdiff_jax.model.feed_forward import FeedForward
from specdiff_jax.model.layers import RMSNorm, lookup, normal_param
from specdiff_jax.model.rotary import RotaryTable, rotary_table


class DraftOutput(NamedTuple):
    """Result of a draft.

    Attributes:
        hidden: the block's rows after the drafter's final norm, ready for `draft_logits`.
        cache: keys and values of the context, the fresh rows among them.
    """

    hidden: Float[Array, "batch slots hidden"]
    cache: KVCache


class DraftRows(NamedTuple):
    """What the rows of a draft share in every layer: those of the context stand first, then those of the block.

    Attributes:
        rotary: angles of all.
        starts: cached tokens, behind which the context's rows are written.
        begin: position of the anchor, where the block's rows are written.
        places: positions of the context's rows.
        slots: positions of the block's.
    """

    rotary: RotaryTable
    starts: Int[Array, " batch"]
    begin: Int[Array, " batch"]
    places: Int[Array, "batch rows"]
    slots: Int[Array, "batch slots"]


class DrafterLayer(nnx.Module):
    """Pre-norm residual layer whose attention also reads the context."""

    def __init__(
        self,
        config: DrafterConfig,
        attention: DraftAttention,
        *,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
        implementation: Implementation,
    ) -> None:
        backbone = config.backbone
        self.sees = attention
        self.injected = config.conditioning == "key_value"
        self.value_scale = config.attention_value_scale
        self.attention_norm = RMSNorm(backbone.hidden_size, backbone.rms_norm_eps, dtype)
        self.attention = Attention(backbone, dtype=dtype, rngs=rngs, implementation=implementation)
        self.feed_forward_norm = RMSNorm(backbone.hidden_size, backbone.rms_norm_eps, dtype)
        self.feed_forward = FeedForward(backbone, dtype=dtype, rngs=rngs)
        heads = (backbone.num_kv_heads, backbone.group_size)
        self.sinks = nnx.Param(jnp.zeros(heads, dtype)) if config.attention_sinks else None
        whole_head = 2 * len(backbone.rotary.inverse_frequencies) == backbone.head_dim
        plain = attention.window is None and self.sinks is None and self.value_scale == 1
        self.kernels = self.attention.branch_kernels and self.injected and plain and whole_head

    def __call__(
        self,
        block: Float[Array, "batch slots hidden"],
        context: Float[Array, "batch rows hidden"],
        rows: DraftRows,
        cached: LayerCache,
    ) -> tuple[Float[Array, "batch slots hidden"], Float[Array, "batch rows hidden"], LayerCache]:
        """The block's residual stream, what the next layer reads of the context, and the cache with all rows in it."""
        if self.kernels and block.shape[1]:
            return self._with_kernels(block, context, rows, cached)
        known, count = context if self.injected else self.attention_norm(context), context.shape[1]
        normed = jnp.concatenate([known, self.attention_norm(block)], axis=1)
        queries, keys, values = self.heads(normed, rows.rotary)
        cached = _written(cached, (keys[:, :, :count], values[:, :, :count]), rows.starts)
        cached = _written(cached, (keys[:, :, count:], values[:, :, count:]), rows.begin)
        sinks, capacity = None if self.sinks is None else self.sinks[...], cached[0].shape[2]
        if not self.injected:
            seen = _visible(DraftAttention(self.sees.window, causal=True), rows.places, rows.begin, capacity)
            context = self.finish(context, attend(queries[:, :count], *cached, seen, sinks))
        if block.shape[1]:
            seen = _visible(self.sees, rows.slots, rows.begin + block.shape[1], capacity)
            block = self.finish(block, attend(queries[:, count:], *cached, seen, sinks))
        return block, context, cached

    def heads(
        self, rows: Float[Array, "batch rows hidden"], rotary: RotaryTable
    ) -> tuple[
        Float[Array, "batch rows kv_heads group head_dim"],
        Float[Array, "batch kv_heads rows head_dim"],
        Float[Array, "batch kv_heads rows head_dim"],
    ]:
        """Queries, keys and values of normed rows, rotated to their positions."""
        queries, keys, values = self.attention.rotated(self.attention.projected(rows), rotary)
        return queries, keys.swapaxes(1, 2), (self.value_scale * values).swapaxes(1, 2)

    def finish(
        self, x: Float[Array, "batch rows hidden"], mixed: Float[Array, "batch rows kv_heads group head_dim"]
    ) -> Float[Array, "batch rows hidden"]:
        """The residual stream after attention's output projection and the feed-forward."""
        x = x + self.attention.project_out(mixed)
        return x + self.feed_forward(self.feed_forward_norm(x))

    def _with_kernels(
        self, block: Array, context: Array, rows: DraftRows, cached: LayerCache
    ) -> tuple[Array, Array, LayerCache]:
        """The same, with kernels around the products; all rows of the block stand side by side."""
        (batch, slots, size), count, attention = block.shape, context.shape[1], self.attention
        hidden, angles = block.reshape(1, -1, size), (rows.rotary.cos, rows.rotary.sin)

        def normed(norm: RMSNorm, added: Array | None) -> Array:
            return normed_rows(hidden, added, norm.weight[...], norm.eps, None, implementation="triton")

        own = normed(self.attention_norm, None).reshape(block.shape)
        products = attention.products(jnp.concatenate([context, own], axis=1))
        flat = products.reshape(-1, *attention.per_kv_head)
        heads = rotated_heads(flat, attention.bias_of_heads, None, None, *angles, 1, attention.head_norm)
        heads = heads.reshape(products.shape)
        keys, values = (heads[:, :count, :, part].swapaxes(1, 2) for part in (-2, -1))
        cached = _written(cached, (keys, values), rows.starts)
        visible = rows.slots - rows.begin[:, None] + 1 if self.sees.causal else jnp.full((batch, slots), slots)
        scale = score_scale(rows.rotary, heads.shape[-1])[:, count:]
        of_block = BranchRows(rows.rotary, scale, rows.begin, None, visible[:, None], "triton", append=True)
        mixed = attend_rotated(heads[:, count:].reshape(-1, *attention.per_kv_head), cached, of_block, None)
        attended = attention.project_out(mixed.heads.reshape(1, -1, *mixed.heads.shape[3:]))
        fed = self.feed_forward(normed(self.feed_forward_norm, attended))
        hidden, _ = add_through(hidden, attended, fed, None, None, implementation="triton")
        return hidden.reshape(block.shape), context, (mixed.keys, mixed.values)


class BlockDrafter(nnx.Module):
    """Fusion of the target's features, layers, final norm; embedding and head are the target's.

    `implementation` picks what runs around the products: "xla" everywhere, "triton" on one GPU.
    """

    def __init__(
        self, config: DrafterConfig, *, dtype: DTypeLike, rngs: nnx.Rngs, implementation: Implementation = "xla"
    ) -> None:
        backbone = config.backbone
        self.config = config
        if config.conditioning != "none":
            width = len(config.target_layer_ids) * backbone.hidden_size
            self.fuse = normal_param(rngs, (backbone.hidden_size, width), dtype)
            self.context_norm = RMSNorm(backbone.hidden_size, backbone.rms_norm_eps, dtype)
        self.layers = nnx.List(
            DrafterLayer(config, sees, dtype=dtype, rngs=rngs, implementation=implementation)
            for sees in config.attentions
        )
        self.norm = RMSNorm(backbone.hidden_size, backbone.rms_norm_eps, dtype)

    def context(
        self, features: tuple[Float[Array, "batch rows hidden"], ...], embedded: Float[Array, "batch rows hidden"]
    ) -> Float[Array, "batch rows hidden"]:
        """What every layer reads of some tokens of the context.

        Args:
            features: the target's residual stream behind each of `target_layer_ids`, at these tokens.
            embedded: the target's embeddings of these tokens; read where features don't go into keys and values.
        """
        if self.config.conditioning == "none":
            return embedded
        fused = self.context_norm(contract("bsf,hf->bsh", jnp.concatenate(features, axis=-1), self.fuse[...]))
        return fused if self.config.conditioning == "key_value" else embedded + fused

    def remember(self, context: Float[Array, "batch rows hidden"], cache: KVCache) -> KVCache:
        """Write keys and values of context rows behind each batch row's cached tokens; the lengths are as given."""
        nothing = context[:, :0]
        return self._run(nothing, context, jnp.full_like(cache.lengths, context.shape[1]), cache).cache.with_lengths(
            cache.lengths
        )

    def __call__(
        self,
        block: Float[Array, "batch slots hidden"],
        context: Float[Array, "batch rows hidden"],
        fresh: Int[Array, " batch"],
        cache: KVCache,
    ) -> DraftOutput:
        """Fill a block.

        Args:
            block: embeddings of the anchor and of masks.
            context: what tokens that are not cached yet are read as; only the first `fresh` rows of a batch row count.
            fresh: their number, whose tokens stand right before the anchor.
            cache: keys and values of the context so far, by absolute position; it needs room for all of `context` and
                for the block behind it.
        """
        ran = self._run(block, context, fresh, cache)
        return DraftOutput(self.norm(ran.hidden), ran.cache)

    def _run(self, block: Array, context: Array, fresh: Int[Array, " batch"], cache: KVCache) -> DraftOutput:
        """All layers."""
        begin = cache.lengths + fresh
        places = cache.lengths[:, None] + jnp.arange(context.shape[1], dtype=jnp.int32)
        slots = begin[:, None] + jnp.arange(block.shape[1], dtype=jnp.int32)
        rotary = rotary_table(self.config.backbone.rotary, jnp.concatenate([places, slots], axis=1))
        rows = DraftRows(rotary, cache.lengths, begin, places, slots)
        keys, values = [], []
        for index, layer in enumerate(self.layers):
            block, context, cached = layer(block, context, rows, (cache.keys[index], cache.values[index]))
            keys.append(cached[0])
            values.append(cached[1])
        return DraftOutput(block, KVCache(tuple(keys), tuple(values), begin))


def embed_block(
    target: Decoder, drafter: DrafterConfig, tokens: Int[Array, "batch rows"]
) -> Float[Array, "batch rows hidden"]:
    """The target's embeddings, as the drafter takes them."""
    return lookup(target.embedding[...], tokens) * jnp.asarray(
        drafter.input_embedding_scale, target.embedding[...].dtype
    )


def draft_logits(
    target: Decoder, drafter: DrafterConfig, hidden: Float[Array, "*rows hidden"], vocabulary: slice = slice(None)
) -> Float[Array, "*rows vocab"]:
    """Float32 logits of drafted rows by the target's head; the target's own final norm has no part in them."""
    logits = target.logits(hidden, vocabulary) * drafter.output_multiplier
    cap = drafter.final_logit_softcapping
    return logits if cap is None else cap * jnp.tanh(logits / cap)


def _written(cached: LayerCache, new: LayerCache, starts: Int[Array, " batch"]) -> LayerCache:
    """The cache with new keys and values at `starts`; later ones take the place of what doesn't count."""
    return write(cached[0], new[0], starts), write(cached[1], new[1], starts)


def _visible(
    sees: DraftAttention, places: Int[Array, "batch rows"], ends: Int[Array, " batch"], capacity: int
) -> Visible:
    """Which keys, by absolute position, each row sees: none at `ends` or behind it."""
    counts = places + 1 if sees.causal else jnp.broadcast_to(ends[:, None], places.shape)
    if sees.window is None:
        return counts
    keys = jnp.arange(capacity, dtype=jnp.int32)
    near = jnp.abs(places[:, :, None] - keys) < sees.window
    return near & (keys < counts[:, :, None])
