"""`specdiff demo`: a small model answers a few questions, once with each method."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from specdiff_jax.cli.compilation import keep_compiled_programs
from specdiff_jax.cli.output import JsonFlag, note, print_json, print_table

if TYPE_CHECKING:
    from specdiff_jax.decode.generate import Generation


def demo(as_json: JsonFlag = False) -> None:
    """Let a small model answer easy questions, once with each method."""
    settings = json.loads(files("configs").joinpath("demo.json").read_text(encoding="utf-8"))
    questions = settings["questions"]
    keep_compiled_programs()

    import specdiff_jax as sd

    note(f"loading {settings['model']}")
    model = sd.load(settings["model"])
    note(f"answering {len(questions)} questions autoregressively")
    results = sd.generate(
        model,
        [question["prompt"] for question in questions],
        sd.Autoregressive(),
        max_new_tokens=settings["max_new_tokens"],
        on_result=lambda index, result: note(f"  {questions[index]['prompt']} {' '.join(result.text.split())}"),
    )
    answers = [question["answer"] for question in questions]
    rows = [summary(settings["model"], "autoregressive", results, answers)]
    if as_json:
        print_json({"rows": rows})
    else:
        keys = [key for key in rows[0] if key != "method"]
        print_table([{"": key.replace("_", " "), **{row["method"]: row[key] for row in rows}} for key in keys])


def summary(
    model: str, method: str, results: list[Generation], answers: list[str], baseline: list[Generation] | None = None
) -> dict[str, Any]:
    """One method's row of the comparison.

    Args:
        model: name of the target.
        method: name of the method.
        results: what it answered.
        answers: the word that each right answer holds.
        baseline: what the baseline answered; None where this is the baseline.

    Returns:
        Rates are totals over totals; accuracy is a share of 1.
    """
    right = sum(
        re.search(rf"\b{re.escape(answer)}\b", result.text, re.IGNORECASE) is not None
        for result, answer in zip(results, answers, strict=True)
    )
    forwards = sum(result.forwards for result in results)
    new_tokens = sum(result.new_tokens for result in results)
    return {
        "model": model,
        "method": method,
        "prompts": len(results),
        "accuracy": right / len(results),
        "forwards": forwards,
        "tokens_per_forward": new_tokens / forwards,
        "tokens_per_second": new_tokens / sum(result.seconds for result in results),
        "acceptance_length": None,
        "fold_ratio": None,
        "identical_to_baseline": None
        if baseline is None
        else [result.tokens for result in results] == [result.tokens for result in baseline],
    }
