"""The two ways in which a folded row attends to its block."""

from __future__ import annotations

from typing import Literal

FoldedAttention = Literal["split", "correct"]
"""Directly, or by the paper's correction of its source's softmax state."""
