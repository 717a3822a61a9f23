"""Where the folder `configs` lies, whose files are data of this library."""

from __future__ import annotations

from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
"""Beside this package, and not whatever Python finds under that name: projects tend to have a folder of it, too."""
