"""Speculative decoding between diffusion and language models, in JAX."""
