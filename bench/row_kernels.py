"""The kernel families of a layer, and that of the logits, each as a call that can be repeated.

What they do is taken from the code that the model runs. Their inputs are in the cache of the GPU, as in a forward,
where the launch before has just written them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from bench.forward_step import RANKS, prescribed
from bench.repeated import Call, Repeated, waiting
from pallas_kernels.feed_forward import add_through
from pallas_kernels.implementation import Implementation
from pallas_kernels.likeliest import likeliest
from pallas_kernels.projection import normed_rows
from pallas_kernels.rows import RowPlan, plan_rows
from specdiff_jax.block_spec import block_spec
from specdiff_jax.config import ModelConfig
from specdiff_jax.model.attention import Attention, Rows
from specdiff_jax.model.branch_attention import BranchRows, attend_branches, score_scale
from specdiff_jax.model.branches import gate_of
from specdiff_jax.model.rotary import rotary_table

CALLS, ROUNDS = 8, 16
"""Of a round, each with a result of its own, all of which the cache holds; and of a step."""


class AttentionAlone(Attention):
    """The attention of a layer between its two products, from projected rows to mixed heads side by side."""

    def products(
        self, x: Float[Array, "batch rows projected"]
    ) -> Float[Array, "batch rows kv_heads group_key_value head_dim"]:
        """The rows as they are."""
        return x.reshape(*x.shape[:2], *self.per_kv_head)

    def project_out(
        self, mixed: Float[Array, "batch rows kv_heads group head_dim"]
    ) -> Float[Array, "batch rows heads"]:
        """The heads as they are."""
        return mixed.reshape(*mixed.shape[:2], -1)


@dataclass(frozen=True)
class LayerRun:
    """What a layer works on.

    Attributes:
        config: of the model.
        dtype: of activations.
        branches: main and its drafts.
        slots: of a branch.
        count: computed rows: those of main and so many others, of which chance decides.
        cache_tokens: in the cache.
        implementation: of the families.
    """

    config: ModelConfig
    dtype: str
    branches: int
    slots: int
    count: int
    cache_tokens: int
    implementation: Implementation

    @property
    def rows(self) -> int:
        """Of all branches."""
        return self.branches * self.slots

    @property
    def logit_bytes(self) -> int:
        """Of all rows."""
        return 4 * self.rows * self.config.vocab_size

    def draw(self, seed: int, *shape: int) -> Array:
        """Random activations, made on the host: on the device every shape would be a program to compile."""
        drawn = np.random.default_rng(seed).standard_normal(shape, np.float32)
        return jnp.asarray(drawn.astype(jnp.dtype(self.dtype)))


Rule = tuple[Array, Array, Array]
"""What besides residuals decides which rows are computed: a rule for each, delta, and the parents."""


class Folded(NamedTuple):
    """Which rows of a layer are computed, and why."""

    rule: Rule
    plan: RowPlan


def row_kernels(run: LayerRun) -> Iterator[tuple[str, Repeated | None]]:
    """The families by name; without folded rows there is no plan. None where a kernel does not take the shapes."""
    folded = None
    if run.count < run.rows:
        folded = jax.jit(lambda: _fold(run))()
        yield "plan_rows", _plan(run, folded.rule)
    yield "normed_rows", _norm(run, folded)
    yield "branch_attention", _attention(run, folded)
    yield "add_through", _add(run, folded)
    yield "likeliest", _likeliest(run)


def _fold(run: LayerRun) -> Folded:
    """As many rows as are computed, of which chance decides; the others fold into main."""
    ratio = (run.rows - run.count) / (run.rows - run.slots)
    gate = gate_of(prescribed(1, run.branches, run.slots, ratio, 1), run.slots, groups=1)
    rule = gate.rules[0], gate.folding.delta, gate.parents
    return Folded(rule, plan_rows(jnp.zeros_like(gate.rules[0], jnp.float32), *rule, generations=run.branches - 1))


def _plan(run: LayerRun, rule: Rule) -> Repeated:
    def op(rule: Rule, residual: Array) -> Any:
        plan = plan_rows(residual, *rule, generations=run.branches - 1, implementation=run.implementation)
        return plan.source, plan.index, plan.slot, plan.count

    residuals = [jnp.full((1, run.rows), seed, jnp.float32) for seed in range(CALLS)]
    return Repeated(waiting(op), rule, residuals, ROUNDS)


def _norm(run: LayerRun, folded: Folded | None) -> Repeated:
    """That of the feed-forward, which adds the output of attention first."""
    size, eps = run.config.hidden_size, run.config.rms_norm_eps

    def op(inputs: Any, weight: Array) -> Array:
        hidden, attended, plan = inputs
        return normed_rows(hidden, attended, weight, eps, plan, places=run.count, implementation=run.implementation)

    hidden, attended = (run.draw(seed, 1, run.rows, size) for seed in range(2))
    inputs = hidden, attended, None if folded is None else folded.plan
    return Repeated(waiting(op), inputs, [run.draw(seed, size) for seed in range(CALLS)], ROUNDS)


def _add(run: LayerRun, folded: Folded | None) -> Repeated:
    def call(inputs: Any, _: None) -> Any:
        hidden, *others = inputs
        result = add_through(hidden, *others, implementation=run.implementation)
        others, (hidden, residual) = jax.lax.optimization_barrier((others, result))
        return (hidden, *others), residual

    plan, parents = (None, None) if folded is None else (folded.plan, folded.rule[2])
    size = run.config.hidden_size
    hidden, attended, fed = (run.draw(seed, 1, rows, size) for seed, rows in enumerate([run.rows, run.rows, run.count]))
    return Repeated(call, (hidden, attended, fed, plan, parents), [None] * CALLS, ROUNDS)


def _likeliest(run: LayerRun) -> Repeated:
    """That of a verdict: of all rows, whichever were computed."""
    banned = block_spec(run.config).mask_token_id
    shape = (run.branches, run.slots, run.config.vocab_size)
    logits = jnp.asarray(np.random.default_rng(0).standard_normal(shape, np.float32))

    def op(logits: Array, _: None) -> Any:
        return tuple(likeliest(logits, banned, RANKS, implementation=run.implementation))

    return Repeated(waiting(op), logits, [None] * CALLS, ROUNDS)


def _attention(run: LayerRun, folded: Folded | None) -> Repeated | None:
    config = run.config
    attention = AttentionAlone(config, dtype=run.dtype, rngs=nnx.Rngs(0), implementation=run.implementation)
    if run.implementation == "triton" and not attention.branch_kernels:
        return None
    buffer = (1, config.num_kv_heads, run.cache_tokens + run.slots, config.head_dim)
    cached = run.draw(0, *buffer), run.draw(1, *buffer)
    projected = run.draw(2, 1, run.count, config.num_kv_heads * (config.group_size + 2) * config.head_dim)
    inputs = projected, cached, None if folded is None else folded.plan
    lengths = [jnp.full((1,), run.cache_tokens, jnp.int32) for _ in range(CALLS)]
    return Repeated((_block_call if run.branches == 1 else _branches_call)(run, attention), inputs, lengths, ROUNDS)


def _branches_call(run: LayerRun, attention: Attention) -> Call:
    rows = _branch_rows(run)

    def op(inputs: Any, lengths: Array) -> Any:
        projected, cached, plan = inputs
        return attend_branches(attention, projected, cached, rows._replace(lengths=lengths), plan, correct=False)

    return waiting(op)


def _block_call(run: LayerRun, attention: Attention) -> Call:
    """As in `Decoder.block`: each call writes its rows to the cache, and the next one reads that."""
    rows = _branch_rows(run)._replace(append=True)

    def call(inputs: Any, lengths: Array) -> Any:
        projected, cached, plan = inputs
        if attention.branch_kernels:
            of_block = rows._replace(lengths=lengths)
            heads, *cached, _ = attend_branches(attention, projected, cached, of_block, None, correct=False)
        else:
            seen = lengths[:, None] + rows.visible[:, 0]
            heads, cached = attention(projected, Rows(rows.rotary, lengths, seen), cached)
        projected, heads = jax.lax.optimization_barrier((projected, heads))
        return (projected, tuple(cached), plan), heads

    return call


def _branch_rows(run: LayerRun) -> BranchRows:
    """What all layers share."""
    lengths = jnp.full((1,), run.cache_tokens, jnp.int32)
    rotary = rotary_table(run.config.rotary, lengths[:, None] + jnp.arange(run.slots, dtype=jnp.int32))
    visible = jnp.full((1, run.branches, run.slots), run.slots, jnp.int32)
    return BranchRows(rotary, score_scale(rotary, run.config.head_dim), lengths, None, visible, run.implementation)
