"""The acceptance length of a drafter that is being trained, from the real decoding loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from convert.params import with_arrays
from specdiff_jax.drafter_loading import Drafter
from specdiff_jax.loading import Model
from specdiff_jax.train.packing import PackedTexts
from specdiff_jax.train.programs import Params

_BATCH = 32  # prompts answered side by side


def measure_acceptance(
    target: Model, drafter: Drafter, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> Callable[[Params], float | None]:
    """A function from a drafter's parameters to its acceptance length, the mean over greedy answers.

    Args:
        target: the model that it drafts for.
        drafter: it with any weights.
        prompts: as token ids.
        max_new_tokens: of each answer.

    Returns:
        the function; it gives None where no answer was long enough to be drafted.
    """

    def measure(params: Params) -> float | None:
        from specdiff_jax.decode.generate import generate
        from specdiff_jax.decode.methods import DFlash

        weights = {name: jnp.asarray(np.asarray(array), target.dtype) for name, array in params.items()}
        trained = Drafter(drafter.name, drafter.config, drafter.graphdef, with_arrays(drafter.params, weights))
        answers = generate(
            target,
            prompts,
            DFlash(trained),
            max_new_tokens=max_new_tokens,
            batch_size=min(_BATCH, len(prompts)),
        )
        lengths = [answer.acceptance_length for answer in answers if answer.acceptance_length is not None]
        return float(np.mean(lengths)) if lengths else None

    return measure


def held_out_prompts(texts: PackedTexts, count: int, longest: int) -> list[tuple[int, ...]]:
    """The first prompts of packed texts, each once, that leave room for an answer.

    Args:
        texts: as they were packed.
        count: how many, if there are so many.
        longest: tokens of a prompt at most.
    """
    found: dict[tuple[int, ...], None] = {}
    for tokens, segments, response in zip(texts.tokens, texts.segments, texts.response, strict=True):
        for number in range(1, int(segments.max()) + 1):
            prompt = tuple(tokens[(segments == number) & ~response].tolist())
            if 0 < len(prompt) <= longest:
                found.setdefault(prompt)
        if len(found) >= count:
            break
    return list(found)[:count]
