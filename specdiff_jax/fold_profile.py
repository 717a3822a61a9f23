"""Numbers of a folding profile: how far drafts are from their parents, by layer, level and distance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from specdiff_jax.decode.profiling import Verification

CLOSE = (0.1, 0.3)
"""Residuals below which the SpecFold paper gives the shares of cells: 72 % and 88 %."""

SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Of cells, for which the residual is told that so many don't exceed."""

SURVIVING_EDGES = (0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 0.9, 1.0)
"""Bins of the mass that the correction leaves."""


def summarize(verifications: Sequence[Verification], delta: float) -> dict[str, Any]:
    """Shares, ratios and curves over all cells (draft, verification, layer, slot), as JSON can hold them.

    Args:
        verifications: at least one.
        delta: that folded.

    Returns:
        shares of cells within each of `CLOSE`, and the fold ratio: of all, by layer, and by level of the draft; the
        residuals that `SHARES` of all cells don't exceed; the mean residual by layer and distance to the nearest slot
        that differs from the parent (null where no slot is so far); how many folded rows have how much of their
        source's softmax mass left.
    """
    levels = np.concatenate([seen.levels for seen in verifications])
    residual, recomputed, surviving = (
        np.concatenate([getattr(seen, name) for seen in verifications], axis=1)
        for name in ("residual", "recomputed", "surviving")
    )
    distances = np.concatenate([distance_to_fresh(seen) for seen in verifications])
    folded = ~recomputed
    counts, _ = np.histogram(np.clip(surviving[folded], 0, 1), bins=SURVIVING_EDGES)
    return {
        "verifications": len(verifications),
        "drafts": len(levels),
        "cells": residual.size,
        "delta": delta,
        "fold_ratio": float(folded.mean()),
        "share_within": _shares(residual, axis=None),
        "residual_of_share": dict(zip(map(str, SHARES), np.quantile(residual, SHARES).tolist(), strict=True)),
        "layers": {
            "fold_ratio": folded.mean(axis=(1, 2)).tolist(),
            "share_within": _shares(residual, axis=(1, 2)),
            "residual_by_distance": _by_distance(residual, distances),
        },
        "levels": {
            str(level): {
                "drafts": int(np.sum(levels == level)),
                "fold_ratio": float(folded[:, levels == level].mean()),
                "share_within": _shares(residual[:, levels == level], axis=None),
            }
            for level in np.unique(levels)
        },
        "surviving": {"edges": SURVIVING_EDGES, "rows": counts.tolist()},
    }


def distance_to_fresh(seen: Verification) -> Int[np.ndarray, "drafts slots"]:
    """How far each slot is from the nearest one that differs from the draft's parent."""
    slots = np.arange(seen.masked.size)
    apart = np.abs(slots[:, None] - slots)
    return np.where(seen.fresh[:, None, :], apart, slots.size).min(axis=2)


def typical_child(verifications: Iterable[Verification]) -> tuple[Verification, int]:
    """A verification and a draft of it that fills one slot, of a block that is about half filled, as in figure 6."""
    candidates = [
        (abs(int(seen.masked.sum()) - seen.masked.size // 2), index, draft, seen)
        for index, seen in enumerate(verifications)
        for draft in np.flatnonzero((seen.fresh.sum(axis=1) == 1) & (seen.levels == 1))
    ]
    if candidates:
        _, _, draft, seen = min(candidates, key=lambda candidate: candidate[:3])
        return seen, int(draft)
    return next(iter(verifications)), 0


def longest_block(verifications: Iterable[Verification]) -> list[Verification]:
    """The verifications of the block that took most of them."""
    blocks: dict[tuple[int, int], list[Verification]] = {}
    for seen in verifications:
        blocks.setdefault((seen.prompt, seen.before), []).append(seen)
    return max(blocks.values(), key=len)


def _shares(residual: Float[np.ndarray, "layers drafts slots"], axis: tuple[int, ...] | None) -> dict[str, Any]:
    return {str(bound): np.mean(residual <= bound, axis=axis).tolist() for bound in CLOSE}


def _by_distance(
    residual: Float[np.ndarray, "layers drafts slots"], distances: Int[np.ndarray, "drafts slots"]
) -> list[list[float | None]]:
    means = [
        residual[:, distances == distance].mean(axis=1) if np.any(distances == distance) else None
        for distance in range(distances.shape[1])
    ]
    return [[None if mean is None else float(mean[layer]) for mean in means] for layer in range(len(residual))]
