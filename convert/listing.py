"""Long lists of faults, cut to what one reads."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 20


def listed(faults: Sequence[str]) -> str:
    """The faults joined by "; ", at most 20 of them, then how many more there are."""
    more = len(faults) - SHOWN
    return "; ".join(faults[:SHOWN]) + (f"; ... and {more} more" if more > 0 else "")
