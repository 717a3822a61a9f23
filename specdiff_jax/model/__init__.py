"""Flax NNX modules: one decoder for every target family, its layers and its key/value cache."""

from specdiff_jax.model.cache import KVCache, empty_cache
from specdiff_jax.model.decoder import Decoder, DecoderOutput

__all__ = ["Decoder", "DecoderOutput", "KVCache", "empty_cache"]
