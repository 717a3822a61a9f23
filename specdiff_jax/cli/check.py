"""`specdiff check`: is a checkpoint read right?"""

from __future__ import annotations

from typing import Annotated

import typer

from specdiff_jax.cli.compilation import keep_compiled_programs
from specdiff_jax.cli.output import JsonFlag, print_json


def check(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A Hugging Face folder or id.")],
    as_json: JsonFlag = False,
) -> None:
    """Compare logits with Transformers. Both read the same weights; exit 1 if the logits differ."""
    keep_compiled_programs()

    from convert.check import check as compare

    report = compare(source)
    keys = ("family", "layers", "max_abs_logit_diff", "argmax_agreement", "passed")
    values = {key: getattr(report, key) for key in keys}
    if as_json:
        print_json(values)
    else:
        for key, value in values.items():
            print(f"{key}: {value}")
        print("hidden_diffs:", *(f"{difference:.1e}" for difference in report.hidden_diffs))
    if not report.passed:
        raise typer.Exit(1)
