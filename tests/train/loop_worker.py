"""Trains the tiny model in a folder and prints the losses; in mode `killed` it dies between two checkpoints."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from tiny_training import train_tiny

from specdiff_jax.train.log import TrainingLog, read_log

KILLED_AFTER = 6


def main(mode: str, out: Path) -> None:
    out.mkdir()
    if mode == "killed":
        append = TrainingLog.append

        def append_and_die(self: TrainingLog, row: dict[str, Any], *rest: Any) -> None:
            append(self, row, *rest)
            if row["step"] == KILLED_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)

        TrainingLog.append = append_and_die
    train_tiny(out)
    print(json.dumps([row["loss"] for row in read_log(out / "log.csv")]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
