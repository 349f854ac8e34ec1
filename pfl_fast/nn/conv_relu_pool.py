"""Convolution, ReLU and max-pooling as one layer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pfl_fast import ops
from pfl_fast.ops import dispatch
from pfl_fast.ops.stack import StackFunction, stack_of


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
        stack = stack_of(x, self.weight, self.bias)
        if stack is not None and not torch._C._len_torch_function_stack():
            return stack.call(StackedConvReluPool.apply, *stack.tensors, self._padding)
        return (by_product if stack else by_convolution)(x, self.weight, self.bias, self._padding)


def by_convolution(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """Computes the layer with torch's convolution."""
    return F.max_pool2d(F.relu(F.conv2d(x, weight, bias, padding=padding)), 2)


def by_product(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """Computes the layer with one matrix product over all patches, under ``torch.vmap`` one batched product.

    torch's convolution would have one group per client.
    """
    k = weight.shape[-1]
    samples, (height, width) = len(x), (side + 2 * padding - k + 1 for side in x.shape[2:])
    columns = patches(x, k, padding).reshape(samples * height * width, weight[0].numel())
    products = (columns @ weight.flatten(1).t()).view(samples, height, width, -1).permute(0, 3, 1, 2)
    # Rounding is monotonic: the maximum before bias and ReLU, over four times the values, gives the same bits.
    return F.relu(F.max_pool2d(products, 2) + bias[:, None, None])


def patches(x: Tensor, k: int, padding: int) -> Tensor:
    """Returns the patches ``[..., ho, wo, c, k, k]`` of images ``[..., c, h, w]``, a view if there is no padding."""
    padded = F.pad(x, (padding,) * 4) if padding else x
    return padded.unfold(-2, k, 1).unfold(-2, k, 1).movedim(-5, -3)


class StackedConvReluPool(StackFunction):
    """The layers of C clients: ``x [C, b, c, h, w]``, ``weight [C, o, c, k, k]`` and ``bias [C, o]``, as one product.

    Half as many launches as :func:`by_product`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        """Returns ``[C, b, o, ho // 2, wo // 2]``."""
        clients, samples, outputs, k = *x.shape[:2], weight.shape[1], weight.shape[-1]
        height, width = (side + 2 * padding - k + 1 for side in x.shape[3:])
        columns = patches(x, k, padding).reshape(clients, samples * height * width, weight[0, 0].numel())
        products = torch.bmm(columns, weight.flatten(2).mT).view(clients * samples, height, width, outputs)
        pooled, index = torch.ops.aten.max_pool2d_with_indices(products.permute(0, 3, 1, 2), [2, 2], [2, 2])
        y = x.new_empty(clients, samples, *pooled.shape[1:])  # contiguous: the next layer may flatten it
        torch.add(pooled.view(y.shape), bias[:, None, :, None, None], out=y).relu_()
        ctx.save_for_backward(columns, weight, y, index)
        ctx.image, ctx.products, ctx.padding = x.shape, (height, width), padding
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of the three tensors."""
        columns, weight, y, index = ctx.saved_tensors
        clients, samples, outputs, *pooled = y.shape
        by_channel = grad.new_empty(clients, samples, *pooled, outputs).movedim(-1, 2)
        torch.ops.aten.threshold_backward.grad_input(grad, y, 0, grad_input=by_channel)
        shaped = grad.new_empty(clients * samples, *ctx.products, outputs).permute(0, 3, 1, 2)  # values are not read
        unpooled = torch.ops.aten.max_pool2d_with_indices_backward(
            by_channel.flatten(0, 1), shaped, [2, 2], [2, 2], [0, 0], [1, 1], False, index
        )
        products = unpooled.permute(0, 2, 3, 1).reshape(clients, -1, outputs)
        grad_weight = torch.bmm(products.mT, columns).view(weight.shape)
        grad_x = _images(ctx, products, weight) if ctx.needs_input_grad[0] else None
        return grad_x, grad_weight, by_channel.sum((1, 3, 4)), None


def _images(ctx: Any, products: Tensor, weight: Tensor) -> Tensor:
    """Returns the gradient of the images ``[C, b, c, h, w]`` from that of the products ``[C, b ho wo, o]``."""
    _, samples, *_, height, width = ctx.image
    columns = torch.bmm(weight.flatten(2).mT, products.mT).unflatten(2, (samples, -1)).transpose(1, 2).flatten(0, 1)
    k, padding = weight.shape[-1], ctx.padding
    images: Tensor = torch.ops.aten.col2im(columns, [height, width], [k, k], [1, 1], [padding, padding], [1, 1])
    return images.view(ctx.image)
