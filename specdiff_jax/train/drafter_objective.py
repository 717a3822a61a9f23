"""What training a drafter minimises: the loss of the target's own text, drafted from random anchors.

Every block begins with a token of a response, its anchor, and is filled as in decoding, from features of the text
strictly before it. Slot k predicts the token k places behind the anchor, at that place (no token shift).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from convert.params import with_arrays
from specdiff_jax.model import Decoder
from specdiff_jax.model.drafter import BlockDrafter, draft_logits, embed_block
from specdiff_jax.model.drafter_blocks import PackedContext, by_chunks, fill_blocks
from specdiff_jax.train.objectives import Batch, Metrics, commit_pattern, cross_entropy
from specdiff_jax.train.programs import FEATURES, ROWS, Loss, Params

GAMMAS = {16: 7.0, 10: 5.0, 8: 4.0}
"""The publication's gamma for each block size."""

_OTHER_GAMMA = 1 / 2.3  # of the block size: about what the published ones are
_LOGITS = 1 << 27
"""Logits that are held at once, each four bytes."""

DrafterObjective: TypeAlias = Callable[[BlockDrafter, Decoder, Batch, Key[Array, ""]], tuple[Float[Array, ""], Metrics]]


@dataclass(frozen=True)
class DrafterObjectiveSettings:
    """How blocks are drawn and weighed.

    Attributes:
        anchors: blocks a row of texts, at most; as many as there are anchors, where there are fewer.
        gamma: slot k weighs exp(-(k - 1) / gamma).
        d_pace: None, or alpha of D-PACE (arXiv 2605.18810), whose weights then stand in for the fixed ones: a slot
            weighs as much as accepted length hangs on it.
        fixed_anchors: whether a row has the same anchors in every epoch, for comparison.
        seed: of fixed anchors.
    """

    anchors: int
    gamma: float
    d_pace: float | None = None
    fixed_anchors: bool = False
    seed: int = 0


def default_gamma(block_size: int) -> float:
    """The published gamma, or one in proportion for other sizes."""
    return GAMMAS.get(block_size, block_size * _OTHER_GAMMA)


def make_drafter_loss(
    graphdef: nnx.GraphDef, abstract: nnx.State, target: nnx.GraphDef, objective: DrafterObjective, dtype: str
) -> Loss:
    """An objective as a function of the drafter's float32 parameters and the target's weights, which stay as they are.

    Args:
        graphdef: the drafter without its weights.
        abstract: its state, of which only the structure counts.
        target: the target without its weights.
        objective: what to minimise.
        dtype: of the drafter's weights and activations; the target's are given in theirs.
    """

    def loss(params: Params, frozen: nnx.State, batch: Batch, key: Key[Array, ""]) -> tuple[Float[Array, ""], Metrics]:
        computed = {name: array.astype(dtype) for name, array in params.items()}
        drafter = nnx.merge(graphdef, with_arrays(abstract, computed))
        return objective(drafter, nnx.merge(target, frozen), batch, key)

    return loss


def drafter_objective(settings: DrafterObjectiveSettings) -> DrafterObjective:
    """Cross-entropy of drafted slots against the text.

    Returns:
        an objective with metrics loss, accuracy (share of drafted tokens that are the text's), acceptance (tokens a
        block would give, bonus included, if the target said what the text says: 1 + right ones up to the first wrong
        one), blocks and tokens (pairs of slot and token that carry loss).
    """

    def objective(
        drafter: BlockDrafter, target: Decoder, batch: Batch, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], Metrics]:
        blocks = _draw_blocks(batch, _draws(settings, batch, key), settings.anchors, drafter.config.block_size)
        found = _predictions(drafter, target, batch, blocks)
        weights = blocks.supervised * _weights(settings, found, blocks)
        loss = jnp.sum(weights * found.losses) / jnp.maximum(jnp.sum(weights), 1e-6)
        right = found.right & blocks.supervised
        count = jnp.sum(blocks.supervised)
        leading = jnp.sum(jnp.cumprod(right, axis=-1), axis=-1)
        drawn = jnp.sum(blocks.drawn)
        return loss, {
            "loss": loss,
            "accuracy": jnp.sum(right) / jnp.maximum(count, 1),
            "acceptance": jnp.sum(jnp.where(blocks.drawn, 1 + leading, 0)) / jnp.maximum(drawn, 1),
            "blocks": drawn,
            "tokens": count,
        }

    return objective


def target_features(
    target: Decoder, batch: Batch, layers: tuple[int, ...]
) -> tuple[Float[Array, "batch width hidden"], ...]:
    """The target's residual stream behind some layers, causal within each text."""
    visible = commit_pattern(batch, causal=True)
    return target(batch["tokens"], visible=visible, positions=batch["positions"], taps=layers).features


def anchor_candidates(batch: Batch) -> Bool[Array, "batch width"]:
    """Response tokens that another one of the same response follows."""
    response, segments = batch["response"], batch["segments"]
    followed = response[:, 1:] & (segments[:, 1:] == segments[:, :-1])
    return response & jnp.pad(followed, ((0, 0), (0, 1)))


class _DrawnBlocks(NamedTuple):
    """Blocks of a batch.

    Attributes:
        anchors: the column of each; 0 where a row has too few.
        drawn: which there are.
        targets: tokens that the slots behind the anchor are to predict.
        supervised: which of those slots have one.
    """

    anchors: Int[Array, "batch blocks"]
    drawn: Bool[Array, "batch blocks"]
    targets: Int[Array, "batch blocks drafted"]
    supervised: Bool[Array, "batch blocks drafted"]


class _Predictions(NamedTuple):
    losses: Float[Array, "batch blocks drafted"]
    right: Bool[Array, "batch blocks drafted"]


def _draws(settings: DrafterObjectiveSettings, batch: Batch, key: Key[Array, ""]) -> Float[Array, "batch width"]:
    """A random number for every token."""
    shape = batch["tokens"].shape
    if not settings.fixed_anchors:
        return jax.random.uniform(key, shape)
    own = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(settings.seed), row))(batch[ROWS])
    return jax.vmap(lambda row_key: jax.random.uniform(row_key, shape[1:]))(own)


def _draw_blocks(batch: Batch, draws: Float[Array, "batch width"], most: int, block_size: int) -> _DrawnBlocks:
    """In each row the candidates with the highest draws: uniform, without replacement."""
    width = draws.shape[1]
    highest, anchors = jax.lax.top_k(jnp.where(anchor_candidates(batch), draws, -1.0), min(most, width))
    drawn = highest >= 0
    anchors = jnp.where(drawn, anchors, 0)
    columns = anchors[..., None] + jnp.arange(1, block_size)
    inside = jnp.minimum(columns, width - 1)

    def at(name: str, places: Array) -> Array:
        flat = places.reshape(places.shape[0], -1)
        return jnp.take_along_axis(batch[name], flat, axis=1).reshape(places.shape)

    same_text = at("segments", inside) == at("segments", anchors)[..., None]
    supervised = drawn[..., None] & (columns < width) & same_text & at("response", inside)
    return _DrawnBlocks(anchors, drawn, at("tokens", inside), supervised)


def _predictions(drafter: BlockDrafter, target: Decoder, batch: Batch, blocks: _DrawnBlocks) -> _Predictions:
    """Losses and verdicts of all slots but the anchor's."""
    config, tokens = drafter.config, batch["tokens"]
    if FEATURES in batch:
        features = tuple(jnp.split(batch[FEATURES], len(config.target_layer_ids), axis=-1))
    else:
        features = target_features(target, batch, config.target_layer_ids)
    rows = drafter.context(features, embed_block(target, config, tokens))
    anchored = jnp.take_along_axis(tokens, blocks.anchors, axis=1)[..., None]
    masks = jnp.full(blocks.targets.shape, config.mask_token_id, tokens.dtype)
    ids = jnp.concatenate([anchored, masks], axis=-1)
    embedded = embed_block(target, config, ids.reshape(ids.shape[0], -1)).reshape(*ids.shape, -1)
    context = PackedContext(rows, batch["positions"], batch["segments"])
    hidden = fill_blocks(drafter, context, blocks.anchors, embedded)

    def judge(hidden: Array, targets: Array) -> _Predictions:
        logits = draft_logits(target, config, hidden)
        return _Predictions(cross_entropy(logits, targets), jnp.argmax(logits, axis=-1) == targets)

    size, _, drafted = blocks.targets.shape
    most = max(1, _LOGITS // (size * drafted * config.backbone.vocab_size))
    return by_chunks(judge, (hidden[:, :, 1:], blocks.targets), most)


def _weights(
    settings: DrafterObjectiveSettings, found: _Predictions, blocks: _DrawnBlocks
) -> Float[Array, "*blocks drafted"]:
    """How much each slot counts; what a block lacks counts nothing for the slots before it, either."""
    drafted = blocks.targets.shape[-1]
    if settings.d_pace is None:
        return jnp.exp(-jnp.arange(drafted) / settings.gamma)
    probabilities = jax.lax.stop_gradient(jnp.exp(-found.losses))
    smoothed = (1 - settings.d_pace) * probabilities + settings.d_pace
    prefixes = jnp.cumprod(jnp.where(blocks.supervised, smoothed, 0.0), axis=-1)
    return jnp.flip(jnp.cumsum(jnp.flip(prefixes, axis=-1), axis=-1), axis=-1)
