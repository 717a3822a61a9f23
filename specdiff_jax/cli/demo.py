"""`specdiff demo`: small models answer a few prompts, once with each method."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING, Any

from specdiff_jax.cli.compilation import keep_compiled_programs
from specdiff_jax.cli.methods import MethodFlags, build_method
from specdiff_jax.cli.output import JsonFlag, note, print_json, print_table
from specdiff_jax.config_files import CONFIGS

if TYPE_CHECKING:
    from specdiff_jax.decode.generate import Generation


@dataclass(frozen=True)
class Quiz:
    """Prompts, and which texts answer them."""

    prompts: Sequence[str]
    score: Callable[[Sequence[str]], list[bool]]


def demo(as_json: JsonFlag = False) -> None:
    """Let small models answer a few prompts, once with each method."""
    plan = json.loads((CONFIGS / "demo.json").read_text(encoding="utf-8"))
    keep_compiled_programs()
    rows = [row for entry in plan if has_drafters(entry) for row in compare(entry)]
    if as_json:
        print_json({"rows": rows})
        return
    known = [key for key in rows[0] if key != "prompts" and any(row[key] is not None for row in rows)]
    print_table([{key: row[key] for key in known} for row in rows])


def has_drafters(entry: dict[str, Any]) -> bool:
    """Whether the drafters that an entry's methods name are here: one that was not trained yet is not shown."""
    from convert.resolve import bundled_models

    names = {model.name for model in bundled_models() if model.available}
    return all(asked["drafter"] in names for asked in entry["methods"] if "drafter" in asked)


def compare(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """One model's rows.

    Args:
        entry: "model", "max_new_tokens", what is asked (`open_quiz`), and "methods": each "method" as `--method` has
            it, "label" for the table, and its flags; the first one is the baseline.
    """
    import specdiff_jax as sd

    quiz = open_quiz(entry)
    note(f"loading {entry['model']}")
    model = sd.load(entry["model"])
    rows: list[dict[str, Any]] = []
    baseline = None
    for asked in entry["methods"]:
        flags = {name: value for name, value in asked.items() if name not in ("method", "label")}
        note(f"answering {len(quiz.prompts)} prompts, {asked['label']}")
        results = sd.generate(
            model,
            quiz.prompts,
            build_method(asked["method"], MethodFlags(**flags), entry["model"])(model),
            max_new_tokens=entry["max_new_tokens"],
            on_result=lambda index, result: note(shown(quiz.prompts[index], result.text)),
        )
        right = quiz.score([result.text for result in results])
        rows.append(summary(entry["model"], asked["label"], results, right, baseline))
        baseline = baseline or results
    return rows


def shown(prompt: str, answer: str) -> str:
    """A prompt, and its answer below it."""
    return indent(prompt, "  > ") + "\n" + indent(answer.strip(), "    ")


def open_quiz(entry: dict[str, Any]) -> Quiz:
    """The "questions" of an entry ("prompt", and the word "answer" that is in each right answer), or as many "problems"
    of every procedural task.
    """
    if "questions" in entry:
        words = [question["answer"] for question in entry["questions"]]
        return Quiz([question["prompt"] for question in entry["questions"]], lambda texts: holds_words(texts, words))
    from bench.tasks import mixed_problems, score

    drawn = mixed_problems("test", 0, entry["problems"])
    return Quiz([problem.prompt for problem in drawn], lambda texts: score(drawn, texts))


def holds_words(texts: Sequence[str], words: Sequence[str]) -> list[bool]:
    """Whether each text holds its word, as a whole word in any case."""
    return [
        re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None
        for text, word in zip(texts, words, strict=True)
    ]


def summary(
    model: str,
    method: str,
    results: Sequence[Generation],
    right: Sequence[bool],
    baseline: Sequence[Generation] | None = None,
) -> dict[str, Any]:
    """One method's row of the comparison.

    Args:
        model: name of the target.
        method: name of the method.
        results: what it answered.
        right: which answers are right.
        baseline: what the baseline answered; None where this is the baseline.

    Returns:
        Rates are totals over totals; accuracy is a share of 1.
    """
    forwards = sum(result.forwards for result in results)
    new_tokens = sum(result.new_tokens for result in results)
    ratios = [result.fold_ratio for result in results if result.fold_ratio is not None]
    lengths = [result.acceptance_length for result in results if result.acceptance_length is not None]
    return {
        "model": model,
        "method": method,
        "prompts": len(results),
        "accuracy": sum(right) / len(results),
        "forwards": forwards,
        "tokens_per_forward": new_tokens / forwards,
        "tokens_per_second": new_tokens / sum(result.seconds for result in results),
        "acceptance_length": sum(lengths) / len(lengths) if lengths else None,
        "fold_ratio": sum(ratios) / len(ratios) if ratios else None,
        "identical_to_baseline": None
        if baseline is None
        else [result.tokens for result in results] == [result.tokens for result in baseline],
    }
