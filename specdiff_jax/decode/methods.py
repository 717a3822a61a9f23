"""Decoding methods, each a small frozen dataclass of its settings."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdiff_jax.block_spec import BlockSpec, block_spec
from specdiff_jax.config import ModelConfig
from specdiff_jax.draft_graph import DraftGraph
from specdiff_jax.errors import InputError
from specdiff_jax.folded_attention import FoldedAttention

if TYPE_CHECKING:  # the command checks its flags before it waits for jax
    from specdiff_jax.drafter_loading import Drafter


@dataclass(frozen=True)
class Autoregressive:
    """One token a forward: the baseline of every autoregressive target."""


@dataclass(frozen=True)
class Vanilla:
    """Block diffusion with a confidence threshold: the baseline of every diffusion target.

    Attributes:
        threshold: confidence at which a token is accepted, in (0, 1]; a step accepts the surest one in any case. At 1
            a step accepts one token alone (Fast-dLLM v2).
        block_size: tokens of a block; None is the size that the target was trained for.
        sub_block: width of the runs in which a block is filled from left to right; None is the family's own.
        sub_block_cache: compute only the sub-block's rows where that is possible (Fast-dLLM v2's DualCache): faster
            steps, but an approximation.
        force: take a block size that the target was not trained for.

    Raises:
        InputError: a setting is out of range.
    """

    threshold: float = 0.9
    block_size: int | None = None
    sub_block: int | None = None
    sub_block_cache: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise InputError(f"threshold must be above 0 and at most 1, not {self.threshold}")
        for name in ("block_size", "sub_block"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")


@dataclass(frozen=True)
class LinearSpeculation:
    """A diffusion target with causal commits drafts a block for itself in one forward and verifies it in another.

    The tokens are those that `Autoregressive` gives (Nemotron-Labs-Diffusion's linear self-speculation).
    """


@dataclass(frozen=True)
class DFlash:
    """A small drafter fills a block in one forward, from features of the target, which verifies it in another.

    The tokens are those that `Autoregressive` gives.

    Attributes:
        drafter: made for the target.
        block_size: tokens of a verification, the newest one and the drafts behind it; at most as many as the drafter
            was trained to fill, which is what None stands for, and what it drafts in any case.

    Raises:
        InputError: the block size is out of range.
    """

    drafter: Drafter
    block_size: int | None = None

    def __post_init__(self) -> None:
        trained = self.drafter.config.block_size
        if self.block_size is not None and not 2 <= self.block_size <= trained:
            raise InputError(
                f"block_size must be from 2 to {trained}, which {self.drafter.name} was trained for, "
                f"not {self.block_size}"
            )

    @property
    def width(self) -> int:
        """Tokens of a verification."""
        return self.block_size or self.drafter.config.block_size

    @property
    def baseline(self) -> Autoregressive:
        """The method whose tokens it gives."""
        return Autoregressive()


@dataclass(frozen=True)
class Spiffy:
    """Vanilla block diffusion with drafts of its next states, verified beside it: the same tokens in fewer forwards.

    Attributes:
        graph: which drafts; see `calibrate`.
        budget: how many of them in a forward, chosen anew in each step; None is all.
        threshold: as in `Vanilla`.
        sub_block: as in `Vanilla`.
        adopt: whether the forward of a complete draft, run as a commit, stands for the commit.
        force: take a graph that was calibrated for another model, block or threshold.
        sub_block_cache: as in `Vanilla`. Drafts then are of the active sub-block alone and leave a mask in it, so that
            none is complete, and sub-blocks of two slots have none.

    Raises:
        InputError: a setting is out of range.
    """

    graph: DraftGraph
    budget: int | None = None
    threshold: float = 0.9
    sub_block: int | None = None
    adopt: bool = True
    force: bool = False
    sub_block_cache: bool = False

    def __post_init__(self) -> None:
        if self.budget is not None and not 1 <= self.budget <= self.graph.budget:
            raise InputError(f"budget must be from 1 to {self.graph.budget}, the nodes of the graph, not {self.budget}")
        Vanilla(self.threshold, sub_block=self.sub_block)

    @property
    def baseline(self) -> Vanilla:
        """The method whose tokens it gives."""
        return Vanilla(self.threshold, sub_block=self.sub_block, sub_block_cache=self.sub_block_cache)


@dataclass(frozen=True)
class SpecFold(Spiffy):
    """Spiffy, where rows of drafts that hardly differ from their parent's are folded: faster, and an approximation.

    The main state and the commits are always computed whole, so that an error can only come in through the
    distributions of accepted drafts. In exact mode drafts are verified one at a time, where there is nothing to fold
    into.

    Attributes:
        delta: a row is folded where |h - h_parent| <= delta |h_parent|; below 0 none is.
        attention: of folded rows: "split", attention to the cache as the source computed it and to the own block
            directly; or "correct", the paper's removal and addition of what differs from the source.
        buckets: the rows of a layer are computed in the smallest of so many numbers of places that holds them: equal
            parts of all rows, or what `specdiff bench tune` found for this GPU; 1 computes all places. With kernels all
            layers of a forward take the same number, which is foreseen from earlier forwards; one with too few places
            is repeated and counts twice.

    Raises:
        InputError: a setting is out of range.
    """

    delta: float = 0.1
    attention: FoldedAttention = "split"
    buckets: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if math.isnan(self.delta):
            raise InputError("delta must be a number, not nan")
        if self.attention not in ("split", "correct"):
            raise InputError(f'attention must be "split" or "correct", not {self.attention!r}')
        if self.buckets < 1:
            raise InputError(f"buckets must be at least 1, not {self.buckets}")


Method = Autoregressive | Vanilla | LinearSpeculation | DFlash | Spiffy | SpecFold


def denoising_spec(config: ModelConfig, method: Vanilla) -> BlockSpec:
    """The family's rules with the method's changes.

    Raises:
        InputError: the target is no diffusion model, was not trained for this block size, or has no such sub-blocks.
    """
    spec = block_spec(config, method.block_size)
    size = spec.block_size
    if size != config.block_size and not method.force:
        raise InputError(
            f"block size {size}: the model was trained for blocks of {config.block_size}; leave it out, or force it"
        )
    if size > config.max_position_embeddings:
        raise InputError(f"block size {size} exceeds the context of {config.max_position_embeddings} tokens")
    sub_block = method.sub_block or spec.sub_block
    if size % sub_block:
        raise InputError(f"sub_block {sub_block} does not divide the block size {size}")
    if method.sub_block_cache and sub_block == size:
        raise InputError(f"sub_block_cache needs a sub_block smaller than the block: set sub_block below {size}")
    return dataclasses.replace(spec, sub_block=sub_block)
