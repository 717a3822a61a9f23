"""Decoding methods, each a small frozen dataclass of its settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Autoregressive:
    """One token a forward: the baseline of every autoregressive target."""
