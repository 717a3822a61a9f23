"""Draft graphs for tests."""

from __future__ import annotations

from specdiff_jax.draft_graph import DraftGraph, DraftNode

# One token, a runner-up, sets, several parents, three levels.
RICH = DraftGraph(
    None,
    (
        DraftNode(((0, 0),)),
        DraftNode(((0, 1),)),
        DraftNode(((1, 0),)),
        DraftNode(((0, 0), (1, 0))),
        DraftNode(((0, 0), (1, 0)), (0, 2), 2),
        DraftNode(((0, 0), (2, 0)), (0,), 0),
        DraftNode(((0, 0), (1, 0), (2, 0)), (3,), 3),
        DraftNode(((0, 0), (1, 0), (2, 0)), (4, 5), 5),
    ),
)
