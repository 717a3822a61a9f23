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
from specdiff_jax.drafter_config import DraftAttention, DrafterConfig
from specdiff_jax.model.attention import Attention, LayerCache, Visible, attend
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


class DrafterLayer(nnx.Module):
    """Pre-norm residual layer whose attention also reads the context."""

    def __init__(self, config: DrafterConfig, attention: DraftAttention, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        backbone = config.backbone
        self.sees = attention
        self.value_scale = config.attention_value_scale
        self.attention_norm = RMSNorm(backbone.hidden_size, backbone.rms_norm_eps, dtype)
        self.attention = Attention(backbone, dtype=dtype, rngs=rngs, implementation="xla")
        self.feed_forward_norm = RMSNorm(backbone.hidden_size, backbone.rms_norm_eps, dtype)
        self.feed_forward = FeedForward(backbone, dtype=dtype, rngs=rngs)
        heads = (backbone.num_kv_heads, backbone.group_size)
        self.sinks = nnx.Param(jnp.zeros(heads, dtype)) if config.attention_sinks else None

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


class BlockDrafter(nnx.Module):
    """Fusion of the target's features, layers, final norm; embedding and head are the target's."""

    def __init__(self, config: DrafterConfig, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        backbone = config.backbone
        self.config = config
        if config.conditioning != "none":
            width = len(config.target_layer_ids) * backbone.hidden_size
            self.fuse = normal_param(rngs, (backbone.hidden_size, width), dtype)
            self.context_norm = RMSNorm(backbone.hidden_size, backbone.rms_norm_eps, dtype)
        self.layers = nnx.List(DrafterLayer(config, sees, dtype=dtype, rngs=rngs) for sees in config.attentions)
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
        """All layers. Rows are those of the context, then those of the block."""
        slots, rows = block.shape[1], context.shape[1]
        begin = cache.lengths + fresh
        context_places = cache.lengths[:, None] + jnp.arange(rows, dtype=jnp.int32)
        block_places = begin[:, None] + jnp.arange(slots, dtype=jnp.int32)
        rotary = rotary_table(self.config.backbone.rotary, jnp.concatenate([context_places, block_places], axis=1))
        injected = self.config.conditioning == "key_value"
        keys, values = [], []
        for index, layer in enumerate(self.layers):
            cached = (cache.keys[index], cache.values[index])
            normed = layer.attention_norm(block)
            known = context if injected else layer.attention_norm(context)
            queries, new_keys, new_values = layer.heads(jnp.concatenate([known, normed], axis=1), rotary)
            cached = _written(cached, (new_keys, new_values), cache.lengths, begin, rows)
            sinks = None if layer.sinks is None else layer.sinks[...]
            if not injected:
                seen = _visible(DraftAttention(layer.sees.window, causal=True), context_places, begin, cache.capacity)
                context = layer.finish(context, attend(queries[:, :rows], *cached, seen, sinks))
            if slots:
                seen = _visible(layer.sees, block_places, begin + slots, cache.capacity)
                block = layer.finish(block, attend(queries[:, rows:], *cached, seen, sinks))
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


def _written(
    cached: LayerCache, new: LayerCache, starts: Int[Array, " batch"], begin: Int[Array, " batch"], rows: int
) -> LayerCache:
    """The context's rows behind what is cached, then the block's: over those of the context that don't count."""
    with_context = [write(buffer, array[:, :, :rows], starts) for buffer, array in zip(cached, new, strict=True)]
    keys, values = (write(buffer, array[:, :, rows:], begin) for buffer, array in zip(with_context, new, strict=True))
    return keys, values


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
