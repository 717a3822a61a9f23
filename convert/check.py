"""Is a checkpoint read right? The same prompts through Transformers and through this library, in float32."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float32, Int
from rich.console import Console
from rich.progress import track

from convert.assemble import check_tensors, load_parameters
from convert.checkpoint import Checkpoint, open_checkpoint
from convert.names import parameter_parts, spare_names
from convert.resolve import resolve
from convert.trace import Trace
from specdiff_jax.config import Family, ModelConfig, parse_config
from specdiff_jax.config_files import CONFIGS
from specdiff_jax.errors import InputError
from specdiff_jax.loading import abstract_decoder
from specdiff_jax.model import Decoder, KVCache, empty_cache
from specdiff_jax.text import TextTokenizer

T = TypeVar("T")

MAX_LOGIT_DIFF = 2e-3
"""Up to here a difference of logits is rounding: float32 sums, taken in another order, through tens of layers."""

MIN_ARGMAX_AGREEMENT = 1.0
"""Share of positions at which both sides must rank the same token first: all of them."""

_RANDOM_LENGTHS = range(4, 24)
"""Lengths of the random prompts of a model without text."""


@dataclass(frozen=True)
class CheckReport:
    """How far this library is from Transformers on a checkpoint, over every position that was read.

    Attributes:
        family: of the model.
        max_abs_logit_diff: largest absolute difference of a logit.
        argmax_agreement: share of positions at which the greatest logit is the same token's.
        hidden_diffs: largest absolute difference of the residual stream after each layer; the last is taken after the
            final norm, since Transformers shows no other.
    """

    family: Family
    max_abs_logit_diff: float
    argmax_agreement: float
    hidden_diffs: tuple[float, ...]

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return len(self.hidden_diffs)

    @property
    def passed(self) -> bool:
        """Whether the two are equal up to rounding."""
        return self.max_abs_logit_diff <= MAX_LOGIT_DIFF and self.argmax_agreement >= MIN_ARGMAX_AGREEMENT


def check(source: str | Path, prompts: Sequence[str] | None = None, max_new_tokens: int = 8) -> CheckReport:
    """Compare with Transformers on the same weights, in float32.

    Transformers reads each prompt at once and continues it greedily against its cache; this library then reads the same
    tokens in the same way. Attention is causal on both sides. For the diffusion families that checks weights and layer
    maths, not the visibility inside a block. The two models are never in memory together.

    Args:
        source: a Hugging Face folder, a GGUF file, a bundled name, or an id, which is downloaded.
        prompts: texts; 20 short ones by default, or 20 random rows of ids for a model without a tokenizer.
        max_new_tokens: how far each prompt is continued; all new tokens but the last are read against the cache.

    Raises:
        InputError: PyTorch or Transformers isn't installed, or the checkpoint or a prompt can't be used.
    """
    try:
        from convert.transformers_model import load_transformers, trace_transformers
    except ImportError as error:
        raise InputError("the check needs PyTorch and Transformers; run: pip install 'specdiff-jax[check]'") from error
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
    checkpoint = open_checkpoint(resolve(str(source)))
    config = parse_config(checkpoint.config, checkpoint.config_location)
    if checkpoint.tensors is None:
        raise InputError(
            f"{source}: is a converted folder; check the Hugging Face folder or file that it was made from"
        )
    table = parameter_parts(config, checkpoint.tensors.tensors)
    check_tensors(checkpoint.tensors, table, config.family, spare_names(config))
    ids = _prompt_ids(checkpoint, config, prompts)

    reference = load_transformers(checkpoint, config)
    theirs = [trace_transformers(reference, prompt, max_new_tokens) for prompt in _tracked(ids, "Transformers")]
    del reference
    graphdef, abstract = abstract_decoder(config, "float32", None)
    params = load_parameters(checkpoint.tensors, config, abstract)
    width = max(len(prompt) for prompt in ids)
    cache = empty_cache(config, 1, width + max_new_tokens, jnp.float32)
    forward = partial(_forward, graphdef, params)
    pairs = ((_trace(forward, trace, width, cache), trace) for trace in _tracked(theirs, "specdiff-jax"))
    return _report(config.family, pairs)


def _prompt_ids(checkpoint: Checkpoint, config: ModelConfig, prompts: Sequence[str] | None) -> list[list[int]]:
    """Ids of the prompts, or what stands in for them."""
    if not checkpoint.text_files:
        if prompts is not None:
            raise InputError(f"{checkpoint.path}: has no tokenizer; leave the prompts out to check with random ids")
        generator = np.random.default_rng(0)
        return [generator.integers(config.vocab_size, size=length).tolist() for length in _RANDOM_LENGTHS]
    if prompts is None:
        prompts = json.loads((CONFIGS / "check_prompts.json").read_text(encoding="utf-8"))
    tokenizer = TextTokenizer.from_files(checkpoint.text_files, str(checkpoint.path))
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    if not ids or not all(ids):
        raise InputError("a check needs at least one prompt, and each at least one token")
    return ids


@partial(jax.jit, static_argnums=0)
def _forward(
    graphdef: nnx.GraphDef, params: nnx.State, tokens: Int[Array, "1 rows"], cache: KVCache
) -> tuple[Float32[Array, "rows vocab"], Float32[Array, "layers rows hidden"], KVCache]:
    """Logits, what `Trace.hidden` holds, and the cache with the new rows."""
    decoder: Decoder = nnx.merge(graphdef, params)
    output = decoder(tokens, cache, taps=range(decoder.config.num_layers))
    hidden = jnp.stack([*output.features[:-1], output.hidden])
    assert output.cache is not None
    return decoder.logits(output.hidden)[0], hidden[:, 0], output.cache


def _trace(
    forward: Callable[[Array, KVCache], tuple[Array, Array, KVCache]], theirs: Trace, width: int, cache: KVCache
) -> Trace:
    """This library's trace of the same tokens. Prompts are padded to one width, so that one program reads them all."""
    length = theirs.prompt_length
    prompt = np.zeros((1, width), np.int32)
    prompt[0, :length] = theirs.tokens[:length]
    logits, hidden, cache = forward(jnp.asarray(prompt), cache)
    all_logits, all_hidden = [np.asarray(logits)[:length]], [np.asarray(hidden)[:, :length]]
    for position, token in enumerate(theirs.tokens[length:-1].tolist(), start=length):
        cache = cache.with_lengths(jnp.array([position], jnp.int32))
        logits, hidden, cache = forward(jnp.array([[token]], jnp.int32), cache)
        all_logits.append(np.asarray(logits))
        all_hidden.append(np.asarray(hidden))
    return Trace(theirs.tokens, length, np.concatenate(all_logits), np.concatenate(all_hidden, axis=1))


def _report(family: Family, pairs: Iterable[tuple[Trace, Trace]]) -> CheckReport:
    """Differences over all pairs; a NaN on either side stays one and fails the check."""
    logit_diffs, hidden_diffs, same = [], [], []
    for ours, theirs in pairs:
        logit_diffs.append(np.abs(ours.logits - theirs.logits).max())
        hidden_diffs.append(np.abs(ours.hidden - theirs.hidden).max(axis=(1, 2)))
        same.append(ours.logits.argmax(-1) == theirs.logits.argmax(-1))
    return CheckReport(
        family=family,
        max_abs_logit_diff=float(np.max(logit_diffs)),
        argmax_agreement=float(np.mean(np.concatenate(same))),
        hidden_diffs=tuple(np.max(hidden_diffs, axis=0).tolist()),
    )


def _tracked(items: Sequence[T], description: str) -> Iterable[T]:
    """The items, with a progress bar where someone watches."""
    return track(items, description, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
