"""From a checkpoint of any kind to a converted folder."""

from __future__ import annotations

from pathlib import Path

import jax
from flax import nnx
from jax.sharding import SingleDeviceSharding

from convert.checkpoint import Checkpoint, open_checkpoint
from convert.orbax_folder import save
from convert.resolve import resolve
from convert.whole_folder import check_free
from specdiff_jax.config import is_drafter, parse_config
from specdiff_jax.drafter_config_file import parse_drafter_config
from specdiff_jax.drafter_loading import abstract_drafter, read_drafter_params
from specdiff_jax.loading import abstract_decoder, read_params
from specdiff_jax.parallel import place_abstract


def convert_checkpoint(source: str | Path, destination: Path, dtype: str | None = None) -> None:
    """Write a model or a drafter as a converted folder, which loads fast and holds config, tokenizer and weights.

    Args:
        source: whatever `load` or `load_drafter` takes.
        destination: a folder that doesn't exist yet; it appears only when it is whole.
        dtype: "bfloat16" or "float32"; by default the narrower that loses nothing: bfloat16 where every weight is
            stored so, float32 for all else (float16, quantised GGUF).

    Raises:
        InputError: the source can't be read, or the destination exists or can't be written.
    """
    check_free(destination)
    checkpoint = open_checkpoint(resolve(str(source)))
    read = _read_drafter if is_drafter(checkpoint.config) else _read_model
    family, params = read(checkpoint, dtype or checkpoint.dtype)
    save(
        params,
        destination,
        family=family,
        config=checkpoint.config,
        generation_config=checkpoint.generation_config,
        text_files=checkpoint.text_files,
    )


def _read_model(checkpoint: Checkpoint, dtype: str) -> tuple[str, nnx.State]:
    """Its family, and its weights on the host."""
    config = parse_config(checkpoint.config, checkpoint.config_location)
    _, abstract = abstract_decoder(config, dtype, None)
    return config.family, read_params(checkpoint, config, place_abstract(abstract, _host()))


def _read_drafter(checkpoint: Checkpoint, dtype: str) -> tuple[str, nnx.State]:
    """What stands in for a family, and the weights on the host."""
    config = parse_drafter_config(checkpoint.config, checkpoint.config_location)
    _, abstract = abstract_drafter(config, dtype)
    return "dflash", read_drafter_params(checkpoint, config, place_abstract(abstract, _host()))


def _host() -> SingleDeviceSharding:
    """The CPU, since copying weights takes no accelerator; the default device where JAX_PLATFORMS excludes it."""
    try:
        return SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return SingleDeviceSharding(jax.local_devices()[0])
