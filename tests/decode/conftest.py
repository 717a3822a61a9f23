"""What these tests share."""

from kernel_decoder import with_kernels

__all__ = ["with_kernels"]
