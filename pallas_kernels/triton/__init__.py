"""Pallas-Triton kernels: the light ones around the matrix products, one file a family."""
