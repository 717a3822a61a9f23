"""What a draft graph belongs to: a model, and the rules and threshold that it decodes with."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

import jax.numpy as jnp
import numpy as np
from flax import nnx

from specdiff_jax.decode.methods import Vanilla, denoising_spec
from specdiff_jax.draft_graph import GraphKey
from specdiff_jax.loading import Model

_ROWS, _COLUMNS = 64, 64


def graph_key(model: Model, method: Vanilla) -> GraphKey:
    """The key of graphs for a model and a method.

    Raises:
        InputError: the method doesn't fit the model.
    """
    spec = denoising_spec(model.config, method)
    return GraphKey(
        model=fingerprint(model),
        block_size=spec.block_size,
        sub_block=spec.sub_block,
        strict=spec.strict,
        token_shift=spec.token_shift,
        causal=spec.causal,
        threshold=method.threshold,
    )


def fingerprint(model: Model) -> str:
    """A short hash of a model's settings and of some of its weights, whatever it is called and wherever it lies.

    The weights are taken as bfloat16, so that it is the same in whatever dtype the model was loaded.
    """
    settings = asdict(model.config)
    del settings["rotary"]["rule"]  # only another wording of the rest, which equal models need not share
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    embedding = nnx.merge(model.graphdef, model.params).embedding[...]
    digest.update(np.asarray(embedding[:_ROWS, :_COLUMNS].astype(jnp.bfloat16)).tobytes())
    return digest.hexdigest()[:16]
