"""Kernels for folded decoding: they know rows, not models, and import jax only."""
