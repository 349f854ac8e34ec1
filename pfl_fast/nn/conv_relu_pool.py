"""Convolution, ReLU and max-pooling as one layer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pfl_fast import ops
from pfl_fast.ops import dispatch


class ConvReluPool(nn.Conv2d):
    """Applies ``Conv2d - ReLU - MaxPool2d(2)``.

    On the CPU with :func:`pfl_fast.ops.conv_relu_pool`, which is fast for few input channels or 5 x 5 kernels and
    returns the ``channels_last`` memory format; on CUDA in plain PyTorch, see :mod:`pfl_fast.ops.dispatch`. Parameters
    have the names and initial values of ``nn.Conv2d``.

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
        if dispatch.runs_kernel("conv_relu_pool", x):
            return ops.conv_relu_pool(x, self.weight, self.bias, self._padding)
        stacked = torch._C._functorch.is_batchedtensor(self.weight)
        return (by_product if stacked else by_convolution)(x, self.weight, self.bias, self._padding)


def by_convolution(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """Computes the layer with torch's convolution."""
    return F.max_pool2d(F.relu(F.conv2d(x, weight, bias, padding=padding)), 2)


def by_product(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """Computes the layer with one matrix product over all patches.

    Under ``torch.vmap`` it is one batched product, while torch's convolution would have one group per client.
    """
    k = weight.shape[-1]
    padded = F.pad(x, (padding,) * 4) if padding else x
    patches = padded.unfold(2, k, 1).unfold(3, k, 1)  # [b, c, ho, wo, k, k], a view
    samples, _, height, width = patches.shape[:4]
    columns = patches.permute(0, 2, 3, 1, 4, 5).reshape(samples * height * width, weight[0].numel())
    products = (columns @ weight.flatten(1).t()).view(samples, height, width, -1).permute(0, 3, 1, 2)
    # Rounding is monotonic: the maximum before bias and ReLU, over four times the values, gives the same bits.
    return F.relu(F.max_pool2d(products, 2) + bias[:, None, None])
