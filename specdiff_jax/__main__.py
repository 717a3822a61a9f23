"""`python -m specdiff_jax` is the command `specdiff`."""

from __future__ import annotations

from specdiff_jax.cli import main

main()
