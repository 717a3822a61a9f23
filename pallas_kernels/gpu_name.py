"""What a GPU is called in file names."""

from __future__ import annotations

import re


def short_name(name: str) -> str:
    """The vendor's name in lower case with dashes, without the vendor: h200 for NVIDIA H200."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia")).strip("-")
