"""What a model makes of one text: the record in which two implementations are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Integer


@dataclass(frozen=True)
class Trace:
    """A text's prompt read at once, then the rest token by token against the cache.

    Attributes:
        tokens: the text's ids; the last one is not read.
        prompt_length: how many of them are the prompt.
        logits: of every position that is read.
        hidden: the residual stream after every layer at those positions; after the last layer, the final norm's output.
    """

    tokens: Integer[np.ndarray, " positions_and_one"]
    prompt_length: int
    logits: Float32[np.ndarray, "positions vocab"]
    hidden: Float32[np.ndarray, "layers positions hidden"]
