"""`specdiff models`: the models and drafters that have a name."""

from __future__ import annotations

from specdiff_jax.cli.output import JsonFlag, print_json, print_table


def models(as_json: JsonFlag = False) -> None:
    """List the models and drafters that come in a Python package, this one or another, and need no path."""
    from convert.resolve import bundled_models

    keys = ("name", "kind", "description", "available", "command")
    rows = [{key: getattr(model, key) for key in keys} for model in bundled_models()]
    if as_json:
        for row in rows:
            print_json(row)
    else:
        print_table(rows)
