"""Convolution, ReLU and max-pooling as one layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pfl_fast import ops


class ConvReluPool(nn.Conv2d):
    """Applies ``Conv2d - ReLU - MaxPool2d(2)`` with :func:`pfl_fast.ops.conv_relu_pool`.

    Fast for few input channels or 5 x 5 kernels. Parameters have the names and initial values of ``nn.Conv2d``. The
    result has the ``channels_last`` memory format.

    Args:
        in_channels: number of input channels c.
        out_channels: number of output channels o.
        kernel_size: kernel size k, from 1 to 7.
        padding: zeros on each side, from 0 to k - 1.
        device: device of the parameters.
        dtype: dtype of the parameters.

    >>> import torch
    >>> ConvReluPool(1, 32, 5)(torch.randn(10, 1, 28, 28)).shape
    torch.Size([10, 32, 12, 12])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        padding: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if kernel_size not in range(1, 8):
            raise ValueError(f"ConvReluPool: kernel_size must be from 1 to 7, got {kernel_size!r}")
        if padding not in range(kernel_size):
            raise ValueError(f"ConvReluPool: padding must be from 0 to {kernel_size - 1}, got {padding!r}")
        super().__init__(in_channels, out_channels, kernel_size, padding=padding, device=device, dtype=dtype)
        self._padding = padding  # Conv2d stores a pair

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[b, c, h, w]`` to ``[b, o, ho // 2, wo // 2]``, where ho = h + 2 padding - k + 1."""
        assert self.bias is not None
        return ops.conv_relu_pool(x, self.weight, self.bias, self._padding)
