"""The decoder: one transformer for every target family, told apart by its config alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.contraction import contract
from pallas_kernels.implementation import Implementation
from pallas_kernels.rows import relative_residual
from pallas_kernels.triton.attention import LONGEST_BRANCH
from specdiff_jax.config import ModelConfig
from specdiff_jax.folded_attention import FoldedAttention
from specdiff_jax.model.attention import Attention, LayerCache, Rows, Visible
from specdiff_jax.model.branch_attention import BranchRows, score_scale
from specdiff_jax.model.branches import Folding, Gate, Layer, LayerReport, at_smallest, gate_of, run_layer
from specdiff_jax.model.cache import KVCache
from specdiff_jax.model.feed_forward import FeedForward, SparseFeedForward
from specdiff_jax.model.layers import RMSNorm, lookup, normal_param
from specdiff_jax.model.rotary import rotary_table


class DecoderOutput(NamedTuple):
    """Result of a forward.

    Attributes:
        hidden: rows after the final norm, ready for `Decoder.logits`.
        cache: the cache with the new rows written past each length; the lengths are as given (committing is the
            caller's).
        features: the residual stream after each tapped layer, in the order asked for.
    """

    hidden: Float[Array, "batch rows hidden"]
    cache: KVCache | None
    features: tuple[Float[Array, "batch rows hidden"], ...]


class BranchOutput(NamedTuple):
    """Result of a forward of several branches.

    Attributes:
        hidden: rows after the final norm, ready for `Decoder.logits`.
        keys: that each branch reads for its own slots, one array a layer; the cache is as it was.
        values: that each branch reads for its own slots, one array a layer.
        reports: what each layer tells of its folding; none where every row was computed.
        needed: compact places that the fullest layer needed, of the group that needed most; 0 without folding.
        fits: whether they were there; if not, nothing here is of any use.
    """

    hidden: Float[Array, "batch branches slots hidden"]
    keys: tuple[Float[Array, "batch kv_heads branches slots head_dim"], ...]
    values: tuple[Float[Array, "batch kv_heads branches slots head_dim"], ...]
    reports: tuple[LayerReport, ...]
    needed: Int[Array, ""]
    fits: Bool[Array, ""]


class DecoderLayer(nnx.Module):
    """Pre-norm residual layer."""

    def __init__(
        self, config: ModelConfig, index: int, *, dtype: DTypeLike, rngs: nnx.Rngs, implementation: Implementation
    ) -> None:
        sparse = config.moe is not None and index in config.moe.sparse_layers
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.attention = Attention(config, dtype=dtype, rngs=rngs, implementation=implementation)
        self.feed_forward_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.feed_forward = (SparseFeedForward if sparse else FeedForward)(config, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch rows hidden"], rows: Rows, cached: LayerCache | None
    ) -> tuple[Float[Array, "batch rows hidden"], LayerCache]:
        """The new residual stream and the layer's (keys, values)."""
        mixed, cached = self.attention(self.attention_norm(x), rows, cached)
        x = x + mixed
        return x + self.feed_forward(self.feed_forward_norm(x)), cached


def parts_of(layer: DecoderLayer) -> Layer:
    """What a forward of branches needs of a layer."""
    return Layer(layer.attention_norm, layer.attention, layer.feed_forward_norm, layer.feed_forward)


class Decoder(nnx.Module):
    """Embedding, layers, final norm, head. Layers are unrolled: a scan over stacked weights copies each layer's
    weights.

    `implementation` picks what runs a decode step's attention and all that stands around the products of blocks and
    branches: "xla" everywhere, "triton" on one GPU.
    """

    def __init__(
        self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs, implementation: Implementation = "xla"
    ) -> None:
        self.config = config
        self.embedding = normal_param(rngs, (config.vocab_size, config.hidden_size), dtype)
        self.layers = nnx.List(
            DecoderLayer(config, index, dtype=dtype, rngs=rngs, implementation=implementation)
            for index in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        tied = config.tie_embeddings
        self.head = None if tied else normal_param(rngs, (config.vocab_size, config.hidden_size), dtype)

    def __call__(
        self,
        tokens: Int[Array, "batch rows"],
        cache: KVCache | None = None,
        *,
        visible: Visible | None = None,
        positions: Int[Array, "batch rows"] | None = None,
        taps: Sequence[int] = (),
    ) -> DecoderOutput:
        """Run the rows that follow each batch row's cached tokens.

        Args:
            tokens: ids; row j of batch row b stands behind `cache.lengths[b] + j` others (j without a cache).
            cache: keys and values so far; the new rows are written at its lengths, which must leave room for them.
            visible: how many keys, counted from position 0, each row sees, or which ones; causal by default.
            positions: of the rows, where they are not the places behind the cache (training puts texts side by side).
            taps: indices of the layers whose output residual stream is returned.
        """
        starts = jnp.zeros((tokens.shape[0],), jnp.int32) if cache is None else cache.lengths
        if positions is None:
            positions = starts[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)
        rows = Rows(rotary_table(self.config.rotary, positions), starts, visible)
        x, streams, keys, values = self._run(tokens, rows, cache)
        written = None if cache is None else KVCache(keys, values, cache.lengths)
        return DecoderOutput(self.norm(x), written, tuple(streams[tap] for tap in taps))

    def block(
        self,
        tokens: Int[Array, "batch slots"],
        cache: KVCache,
        visible: Int[Array, "batch slots"],
        *,
        starts: Int[Array, " batch"] | None = None,
        taps: Sequence[int] = (),
    ) -> DecoderOutput:
        """Run the rows of a block, which all see the cached tokens, and write them to the cache.

        Args:
            tokens: ids.
            cache: keys and values so far.
            visible: how many slots of the block, counted from its first, each row sees.
            starts: first cached place that they take; by default they stand behind all.
            taps: indices of the layers whose output residual stream is returned.
        """
        width = tokens.shape[1]
        begin = cache.lengths if starts is None else starts
        if not self.branch_kernels(width):
            seen: Visible = begin[:, None] + visible
            if starts is not None:
                places = jnp.arange(cache.capacity)
                slots = places - starts[:, None]
                others = (places < cache.lengths[:, None]) & ((slots < 0) | (slots >= width))
                seen = others[:, None] | ((slots >= 0)[:, None] & (slots[:, None] < visible[..., None]))
            output = self(tokens, cache.with_lengths(begin), visible=seen, taps=taps)
            assert output.cache is not None
            return output._replace(cache=output.cache.with_lengths(cache.lengths))
        rows = self._branch_rows(cache.lengths, starts, visible[:, None], "triton", append=True)
        hidden = lookup(self.embedding[...], tokens).reshape(1, -1, self.config.hidden_size)
        ran, streams = self._run_branches(hidden, cache, rows, None, None)
        features = tuple(streams[tap].reshape(ran.hidden[:, 0].shape) for tap in taps)
        return DecoderOutput(ran.hidden[:, 0], KVCache(ran.keys, ran.values, cache.lengths), features)

    def branch_kernels(self, slots: int, attention: FoldedAttention = "split") -> bool:
        """Whether forwards of branches run through kernels: the correction of folded rows has none, and a program holds
        all keys of a branch.
        """
        return self.layers[0].attention.branch_kernels and attention == "split" and slots <= LONGEST_BRANCH

    def branches(
        self,
        tokens: Int[Array, "batch branches slots"],
        cache: KVCache,
        visible: Int[Array, "batch branches slots"],
        folding: Folding | None = None,
        *,
        starts: Int[Array, " batch"] | None = None,
    ) -> BranchOutput:
        """Run several continuations of each batch row's cached tokens in one forward.

        Args:
            tokens: ids; a branch sees all cached tokens but those that it replaces, and nothing of other branches.
            cache: keys and values so far; it is read alone.
            visible: how many slots of its own branch, counted from its first, each row sees.
            folding: what may be folded; None computes every row.
            starts: first cached place that the branches replace; by default they stand behind all.
        """
        batch, _, width = tokens.shape
        kernels = self.branch_kernels(width, "split" if folding is None else folding.attention)
        rows = self._branch_rows(cache.lengths, starts, visible, "triton" if kernels else "xla")
        groups = 1 if kernels else batch
        gate = None if folding is None else gate_of(folding, width, groups)
        hidden = lookup(self.embedding[...], tokens).reshape(groups, -1, self.config.hidden_size)
        if gate is None or gate.folding.expected is None:
            return self._run_branches(hidden, cache, rows, gate, None)[0]
        expected = gate.folding.expected * (batch // groups)
        return at_smallest(
            gate.capacities,
            expected,
            lambda capacity: lambda: self._run_branches(hidden, cache, rows, gate, capacity)[0],
        )

    def _branch_rows(
        self,
        lengths: Int[Array, " batch"],
        starts: Int[Array, " batch"] | None,
        visible: Int[Array, "batch branches slots"],
        implementation: Implementation,
        *,
        append: bool = False,
    ) -> BranchRows:
        """What all layers share: rows stand at `starts`, by default behind all cached tokens."""
        slots = jnp.arange(visible.shape[2], dtype=jnp.int32)
        rotary = rotary_table(self.config.rotary, (lengths if starts is None else starts)[:, None] + slots)
        scale = score_scale(rotary, self.config.head_dim)
        return BranchRows(rotary, scale, lengths, starts, visible, implementation, append)

    def _run_branches(
        self,
        hidden: Float[Array, "groups rows hidden"],
        cache: KVCache,
        rows: BranchRows,
        gate: Gate | None,
        capacity: int | None,
    ) -> tuple[BranchOutput, list[Array]]:
        """All layers and the final norm, each layer in so many compact places, or in as many as it needs; and the
        residual streams behind each.
        """
        residual = None if gate is None else relative_residual(hidden, gate.parents)
        keys, values, reports, streams = [], [], [], []
        for index, layer in enumerate(self.layers):
            cached = (cache.keys[index], cache.values[index])
            result, report = run_layer(parts_of(layer), hidden, residual, cached, rows, gate, index, capacity)
            hidden, residual = result.hidden, result.residual
            streams.append(hidden)
            keys.append(result.keys)
            values.append(result.values)
            reports += [] if report is None else [report]
        needed = functools.reduce(jnp.maximum, [report.needed for report in reports], jnp.int32(0))
        fits = jnp.bool_(True) if capacity is None else needed <= capacity
        hidden = self.norm(hidden).reshape(*rows.visible.shape, -1)
        return BranchOutput(hidden, tuple(keys), tuple(values), tuple(reports), needed, fits), streams

    def _run(
        self, tokens: Int[Array, "batch rows"], rows: Rows, cache: KVCache | None
    ) -> tuple[Array, list[Array], tuple[Array, ...], tuple[Array, ...]]:
        """The residual stream behind the last layer, those behind each layer, and every layer's keys and values."""
        x = lookup(self.embedding[...], tokens)
        streams, keys, values = [], [], []
        for index, layer in enumerate(self.layers):
            cached = None if cache is None else (cache.keys[index], cache.values[index])
            x, (layer_keys, layer_values) = layer(x, rows, cached)
            streams.append(x)
            keys.append(layer_keys)
            values.append(layer_values)
        return x, streams, tuple(keys), tuple(values)

    def logits(
        self, hidden: Float[Array, "*rows hidden"], vocabulary: slice = slice(None)
    ) -> Float[Array, "*rows vocab"]:
        """Float32 logits of rows that passed the final norm, for a part of the vocabulary or for all of it."""
        head = self.embedding if self.head is None else self.head
        return contract("...h,vh->...v", hidden, head[...][vocabulary], jnp.float32)
