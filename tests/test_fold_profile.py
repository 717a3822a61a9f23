"""Numbers and pictures of folding profiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specdiff_jax.decode.profiling import Verification
from specdiff_jax.fold_profile import distance_to_fresh, longest_block, summarize, typical_child

LAYERS, SLOTS = 2, 4


def seen(prompt: int = 0, before: int = 0, masks: int = 2, levels: tuple[int, ...] = (1, 2)) -> Verification:
    """Draft d fills slot d, and is far from its parent in the second layer there and in the next slot."""
    drafts = len(levels)
    fresh = np.eye(drafts, SLOTS, dtype=bool)
    residual = np.zeros((LAYERS, drafts, SLOTS), np.float32)
    residual[0] = np.where(fresh, 2.0, 0.0)
    residual[1] = np.where(fresh, 1.0, np.where(np.roll(fresh, 1, axis=1), 0.2, 0.05))
    recomputed = residual > 0.1
    surviving = np.where(recomputed, 1.0, 0.95).astype(np.float32)
    surviving[1, 0, 3] = 1e-5
    masked = np.arange(SLOTS) < masks
    return Verification(prompt, before, np.array(levels), masked, fresh, residual, recomputed, surviving)


def test_shares_and_ratios_by_hand() -> None:
    summary = summarize([seen(), seen()], 0.1)
    assert (summary["verifications"], summary["drafts"], summary["cells"]) == (2, 4, 32)
    # Of a draft's eight cells one in the first layer and two in the second are past 0.1, one each past 0.3.
    assert summary["share_within"] == {"0.1": 5 / 8, "0.3": 6 / 8}
    assert summary["fold_ratio"] == 5 / 8
    # In order: 12 of 0, 8 of 0.05, 4 each of 0.2, 1 and 2.
    assert summary["residual_of_share"]["0.5"] == pytest.approx(0.05)
    assert summary["residual_of_share"]["0.95"] == pytest.approx(2)
    assert summary["layers"]["fold_ratio"] == [3 / 4, 2 / 4]
    assert summary["layers"]["share_within"] == {"0.1": [3 / 4, 2 / 4], "0.3": [3 / 4, 3 / 4]}
    assert set(summary["levels"]) == {"1", "2"}
    assert summary["levels"]["2"] == {"drafts": 2, "fold_ratio": 5 / 8, "share_within": {"0.1": 5 / 8, "0.3": 6 / 8}}
    rows = dict(zip(summary["surviving"]["edges"][:-1], summary["surviving"]["rows"], strict=True))
    assert rows[0.9] == 18
    assert rows[1e-6] == 2
    assert sum(rows.values()) == 20


def test_residuals_by_distance() -> None:
    by_distance = summarize([seen()], 0.1)["layers"]["residual_by_distance"]
    assert by_distance[0] == [2.0, 0.0, 0.0, 0.0]
    # Distance 1: slot 1 of draft 0 (0.2), slots 0 and 2 of draft 1 (0.05 and 0.2); distance 3: slot 3 of draft 0.
    assert by_distance[1] == pytest.approx([1.0, 0.15, 0.05, 0.05])


def test_distances_of_a_set() -> None:
    one = seen(levels=(1,))
    both = np.array([[True, False, False, True]])
    two = Verification(**{**one.__dict__, "fresh": both})
    assert distance_to_fresh(one).tolist() == [[0, 1, 2, 3]]
    assert distance_to_fresh(two).tolist() == [[0, 1, 1, 0]]


def test_the_example_is_a_child_of_main_in_a_half_filled_block() -> None:
    full, half, deep = seen(masks=4), seen(1, masks=2), seen(2, masks=2, levels=(2, 1))
    assert typical_child([full, half, deep]) == (half, 0)
    assert typical_child([full, deep]) == (deep, 1)
    assert typical_child([seen(levels=(2,))])[1] == 0


def test_the_longest_block_is_of_one_prompt() -> None:
    blocks = [seen(0, 0), seen(0, 32), seen(1, 32), seen(1, 32), seen(1, 0)]
    assert longest_block(blocks) == blocks[2:4]


def test_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    from specdiff_jax.fold_plots import plot_profile

    verifications = [seen(), seen()]
    files = plot_profile(summarize(verifications, 0.1), verifications, tmp_path)
    assert [file.name for file in files] == ["layers.png", "heatmap.png", "ripple.png", "surviving.png"]
    for file in files:
        assert image.imread(file)[..., :3].std() > 0.05
