"""How often rounding turns a near-tie: answers in batches and in bfloat16 against those of the exact mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import specdiff_jax as sd
from bench.results import Row
from bench.target import implementation
from bench.tasks import mixed_problems, score
from specdiff_jax.cli.methods import MethodFlags, build_method

DTYPES = ("float32", "bfloat16")
"""Of weights and activations, each measured."""


@dataclass(frozen=True)
class FlipBench:
    """What is measured.

    Attributes:
        batches: numbers of prompts side by side.
        problems: held-out ones of each task that are answered.
        threshold: confidence at which a token is accepted.
        max_new_tokens: most new tokens a prompt.
    """

    batches: Sequence[int]
    problems: int
    threshold: float
    max_new_tokens: int


def measure(name: str, asked: FlipBench) -> Iterator[Row]:
    """A row for each method, dtype and batch, greedily; Spiffy drafts by the model's own graph.

    The truth is Spiffy's exact mode: float32, one prompt and one branch at a time, at vanilla decoding's shapes.

    Args:
        name: of a block-diffusion model with a draft graph.
        asked: what is measured.
    """
    test = mixed_problems("test", 0, asked.problems)
    prompts = [problem.prompt for problem in test]
    single = sd.load(name, dtype="float32")
    vanilla, spiffy = (
        build_method(method, MethodFlags(threshold=asked.threshold), name)(single) for method in ("vanilla", "spiffy")
    )
    exact = sd.generate(single, prompts, spiffy, max_new_tokens=asked.max_new_tokens, exact=True)
    truth = [answer.tokens for answer in exact]
    for dtype in DTYPES:
        model = sd.load(name, dtype=dtype)
        for method in (vanilla, spiffy):
            for batch in asked.batches:
                answers = sd.generate(model, prompts, method, max_new_tokens=asked.max_new_tokens, batch_size=batch)
                right = score(test, [answer.text for answer in answers])
                yield {
                    "model": name,
                    "method": type(method).__name__.lower(),
                    "settings": {
                        "implementation": implementation(model),
                        "dtype": dtype,
                        "batch": batch,
                        "threshold": asked.threshold,
                        "max_new_tokens": asked.max_new_tokens,
                    },
                    "problems": len(test),
                    "accuracy": sum(right) / len(right),
                    **flips([answer.tokens for answer in answers], truth),
                }


def flips(answers: Sequence[Sequence[int]], truth: Sequence[Sequence[int]]) -> Row:
    """Share of answers that equal the truth, and first different tokens over all tokens up to them.

    What follows a first different token answers another text, and so is not compared.
    """
    compared, flipped = 0, 0
    for mine, theirs in zip(answers, truth, strict=True):
        same = next((at for at, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), None)
        if same is None and len(mine) != len(theirs):
            same = min(len(mine), len(theirs))
        flipped += same is not None
        compared += len(theirs) if same is None else same + 1
    return {
        "tokens_compared": compared,
        "same_answers": 1 - flipped / len(truth),
        "flips_per_thousand_tokens": round(1000 * flipped / compared, 4),
    }
