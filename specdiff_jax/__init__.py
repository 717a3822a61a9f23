"""Speculative decoding between diffusion and language models, in JAX.

```python
import specdiff_jax as sd

model = sd.load("smollm2")
(answer,) = sd.generate(model, ["What is the capital of France?"], sd.Autoregressive(), max_new_tokens=32)
print(answer.text)
```

Names are loaded when first used, so that importing the package (and asking the command for help) does not wait for jax.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdiff_jax.config import ModelConfig
    from specdiff_jax.decode.calibrate import calibrate
    from specdiff_jax.decode.generate import Generation, generate
    from specdiff_jax.decode.methods import Autoregressive, DFlash, LinearSpeculation, SpecFold, Spiffy, Vanilla
    from specdiff_jax.draft_graph import DraftGraph, fixed_graph
    from specdiff_jax.draft_graph_file import read_graph, write_graph
    from specdiff_jax.drafter_loading import Drafter, load_drafter
    from specdiff_jax.errors import InputError
    from specdiff_jax.loading import Model, load

__version__ = "0.1.0"

_HOMES = {
    "Autoregressive": "decode.methods",
    "DFlash": "decode.methods",
    "DraftGraph": "draft_graph",
    "Drafter": "drafter_loading",
    "Generation": "decode.generate",
    "InputError": "errors",
    "LinearSpeculation": "decode.methods",
    "Model": "loading",
    "ModelConfig": "config",
    "SpecFold": "decode.methods",
    "Spiffy": "decode.methods",
    "Vanilla": "decode.methods",
    "calibrate": "decode.calibrate",
    "fixed_graph": "draft_graph",
    "generate": "decode.generate",
    "load": "loading",
    "load_drafter": "drafter_loading",
    "read_graph": "draft_graph_file",
    "write_graph": "draft_graph_file",
}

__all__ = [
    "Autoregressive",
    "DFlash",
    "DraftGraph",
    "Drafter",
    "Generation",
    "InputError",
    "LinearSpeculation",
    "Model",
    "ModelConfig",
    "SpecFold",
    "Spiffy",
    "Vanilla",
    "__version__",
    "calibrate",
    "fixed_graph",
    "generate",
    "load",
    "load_drafter",
    "read_graph",
    "write_graph",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
