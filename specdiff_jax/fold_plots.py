"""Pictures of a folding profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specdiff_jax.decode.profiling import Verification
from specdiff_jax.fold_profile import longest_block, typical_child

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_BRIGHTEST = 1.0
"""The residual at which the colours end."""


def plot_profile(summary: dict[str, Any], verifications: Sequence[Verification], folder: Path) -> list[Path]:
    """Draw shares by layer, the heat map over slots (the paper's figure 2), the ripple of one child (figure 6), and
    what the correction leaves of softmax states.

    Args:
        summary: of `summarize`.
        verifications: that it is of.
        folder: where the pictures go.

    Returns:
        the files.

    Raises:
        ImportError: matplotlib isn't installed (extra `plot`).
    """
    drawings: dict[str, Callable[[Axes], None]] = {
        "layers.png": lambda axes: draw_layers(axes, summary),
        "heatmap.png": lambda axes: draw_heatmap(axes, longest_block(verifications)),
        "ripple.png": lambda axes: draw_ripple(axes, *typical_child(verifications)),
        "surviving.png": lambda axes: draw_surviving(axes, summary),
    }
    return [_picture(folder / name, draw) for name, draw in drawings.items()]


def draw_layers(axes: Axes, summary: dict[str, Any]) -> None:
    """Shares of cells and the fold ratio, by layer."""
    layers = summary["layers"]
    for bound, shares in layers["share_within"].items():
        axes.plot(shares, marker="o", markersize=4, label=f"residual at most {bound}")
    axes.plot(layers["fold_ratio"], linestyle="--", color="black", label=f"folded at delta {summary['delta']}")
    axes.set(xlabel="layer", ylabel="share of cells", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def draw_heatmap(axes: Axes, block: Sequence[Verification]) -> None:
    """Residual of the first draft in each slot, the mean of all layers, over the verifications of a block."""
    cells = np.stack([seen.residual[:, 0].mean(axis=0) for seen in block])
    image = _colours(axes, cells)
    for step, seen in enumerate(block):
        _mark(axes, np.flatnonzero(seen.masked), step, ".", "still masked" if step == 0 else None)
        _mark(axes, np.flatnonzero(seen.fresh[0]), step, "x", "filled by the draft" if step == 0 else None)
    axes.set(xlabel="slot of the block", ylabel="verification")
    _legends(axes, image)


def draw_ripple(axes: Axes, seen: Verification, draft: int) -> None:
    """Residual of one draft to its parent in every layer and slot."""
    image = _colours(axes, seen.residual[:, draft])
    for slot in np.flatnonzero(seen.fresh[draft]):
        axes.axvline(float(slot), color="white", linestyle=":", linewidth=1)
    _mark(axes, np.flatnonzero(seen.masked), 0, ".", "masked in main")
    _mark(axes, np.flatnonzero(seen.fresh[draft]), 0, "x", "filled by the draft")
    axes.set(xlabel="slot of the block", ylabel="layer")
    _legends(axes, image)


def draw_surviving(axes: Axes, summary: dict[str, Any]) -> None:
    """How many folded rows have how much of their source's softmax mass left."""
    edges, rows = summary["surviving"]["edges"], summary["surviving"]["rows"]
    names = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    shares = np.array(rows) / max(1, sum(rows))
    axes.bar(names, 100 * shares)
    for place, share in enumerate(shares):
        axes.annotate(f"{100 * share:.2g} %", (place, 100 * share), ha="center", va="bottom", fontsize="small")
    axes.tick_params(axis="x", rotation=30)
    axes.set(xlabel="softmax mass left by the correction (smallest of the heads)", ylabel="folded rows (%)")


def _colours(axes: Axes, cells: np.ndarray) -> AxesImage:
    return axes.imshow(cells, aspect="auto", vmin=0, vmax=_BRIGHTEST, cmap="magma", interpolation="nearest")


def _mark(axes: Axes, slots: np.ndarray, row: int, marker: str, label: str | None) -> None:
    axes.scatter(slots, np.full(slots.shape, row), marker=marker, s=18, color="cyan", label=label)


def _legends(axes: Axes, image: AxesImage) -> None:
    axes.figure.colorbar(image, ax=axes, label="relative residual to the parent", extend="max")
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=2, frameon=False)


def _picture(file: Path, draw: Callable[[Axes], None]) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    draw(figure.add_subplot())
    figure.savefig(file, dpi=120, metadata={"Software": None})
    return file
