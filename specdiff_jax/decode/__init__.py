"""Decoding loops: pure functions over a pytree of state, run on the device from the first token to the last."""
