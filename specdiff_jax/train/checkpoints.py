"""The state of a run on disk, from which it goes on as if it had never stopped."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import jax
import optax
import orbax.checkpoint as ocp
from jaxtyping import Array


class TrainState(NamedTuple):
    """All that a step changes.

    Attributes:
        params: float32 parameters by their dotted names.
        optimizer: moments and counts.
    """

    params: dict[str, Array]
    optimizer: optax.OptState


class Checkpoints:
    """Checkpoints by step in a folder. Each appears only when it is whole; what a kill left behind is removed."""

    def __init__(self, folder: Path, keep: int) -> None:
        """Open or create a folder.

        Args:
            folder: where.
            keep: how many stay, the newest ones.
        """
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, cleanup_tmp_directories=True, enable_async_checkpointing=False
        )
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def newest(self) -> int | None:
        """The step of the newest whole checkpoint, if there is one."""
        return self._manager.latest_step()

    def restore(self, step: int, like: TrainState) -> TrainState:
        """The state of a step, on the devices of `like`."""
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)
        return self._manager.restore(step, args=ocp.args.StandardRestore(abstract))

    def save(self, step: int, state: TrainState) -> None:
        """Write the state after `step` steps."""
        self._manager.save(step, args=ocp.args.StandardSave(state))

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager.close()
