"""Convolution, bias, ReLU and 2x2 max-pooling in one pass, for small convolutional networks.

    v = conv2d(x, weight, padding) + bias
    out[.., i, j] = max(0, v[.., 2i, 2j], v[.., 2i, 2j+1], v[.., 2i+1, 2j], v[.., 2i+1, 2j+1])

General convolutions vectorise over input channels, of which images have one or three. This one vectorises over output
channels. Only one byte per result, the position of the maximum, is saved for the backward, and the gradient of the
weight is summed over these positions only.

For 5 x 5 kernels over 8 or more channels the CPU uses Winograd's minimal filtering, forward and backward. It needs a
sixth of the products of the direct sum, and loses at most one of float32's seven digits.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import check_device, check_dtype, check_float, check_tensors, expect

MAX_KERNEL = 7


def conv_relu_pool(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
    """Computes ``max_pool2d(relu(conv2d(x, weight, bias, padding=padding)), 2)``.

    Fast for few input channels or 5 x 5 kernels.

    Args:
        x: ``[*batch, b, c, h, w]`` images. float64, float32, bfloat16 or float16; any strides.
        weight: ``[*batch, o, c, k, k]``, one kernel per client, k from 1 to 7. Same dtype as ``x``.
        bias: ``[*batch, o]``. Same dtype as ``x``.
        padding: zeros on each side, from 0 to k - 1.

    Returns:
        ``[*batch, b, o, (h + 2 padding - k + 1) // 2, (w + 2 padding - k + 1) // 2]`` in channels-last memory format,
        which the next convolution reads fastest.

    Differentiable once with respect to ``x``, ``weight`` and ``bias``. As in torch, the gradient of a maximum goes to
    the first of equal pixels, and is 0 where the result is 0. Sums are added in a fixed order. A gradient is NaN or
    infinite if a term of its sum is: a gradient of a positive or NaN result times a pixel or a weight. On the CPU,
    other gradients may become NaN, too.

    >>> x = torch.tensor([[[[1.0, 2.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 9.0]]]])
    >>> conv_relu_pool(x, torch.ones(1, 1, 2, 2), torch.zeros(1))       # sums of 2x2 pixels: 6, 2, 3, 9
    tensor([[[[9.]]]])
    """
    check_tensors("conv_relu_pool", x=x, weight=weight, bias=bias)
    if backend.runs_native("conv_relu_pool", x):
        return cast(Tensor, backend.call("conv_relu_pool", x, weight, bias, padding)[0])
    _check(x, weight, bias, padding)
    return reference.conv_relu_pool(x, weight, bias, padding)


def _check(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> None:
    """Raises if an argument violates the contract in csrc/ops/conv_relu_pool/contract.h."""
    op = "conv_relu_pool"
    _check_kernels(op, x, weight, padding)
    check_dtype(op, "bias", bias, "x", x)
    check_device(op, "bias", bias, "x", x)
    expect(
        op,
        bias.shape == weight.shape[:-3],
        f"bias must be [*batch, o] for weight {list(weight.shape)}, got {list(bias.shape)}",
    )


def _check_kernels(op: str, x: Tensor, weight: Tensor, padding: int) -> None:
    check_float(op, "x", x)
    expect(op, x.dim() >= 4, f"x must be [*batch, b, c, h, w], got shape {list(x.shape)}")
    check_dtype(op, "weight", weight, "x", x)
    check_device(op, "weight", weight, "x", x)
    got = list(weight.shape)
    k = got[-1] if got else 0
    expect(
        op,
        weight.dim() == x.dim() and got == [*x.shape[:-4], got[-4], x.shape[-3], k, k],
        f"weight must be [*batch, o, c, k, k] with the batch and the c of x {list(x.shape)}, got {got}",
    )
    expect(
        op,
        1 <= k <= MAX_KERNEL and got[-4] > 0 and got[-3] > 0,
        f"weight must have k from 1 to {MAX_KERNEL} and at least one channel, got {got}; other sizes run as conv2d, "
        f"relu and max_pool2d",
    )
    expect(op, 0 <= padding < k, f"padding must be from 0 to k - 1 = {k - 1}, got {padding}")
    expect(
        op,
        all(side + 2 * padding - k + 1 >= 2 for side in x.shape[-2:]),
        f"x must be at least {k + 1 - 2 * padding} pixels high and wide for kernels of {k} and padding {padding}, got "
        f"shape {list(x.shape)}",
    )


def _result_shape(x: Tensor, weight: Tensor, padding: int) -> list[int]:
    height, width = ((side + 2 * padding - weight.shape[-1] + 1) // 2 for side in x.shape[-2:])
    return [*x.shape[:-3], weight.shape[-4], height, width]


def _new_gradient(like: Tensor) -> Tensor:
    """Returns an empty gradient in the memory format of ``like``; contiguous with more than one batch dimension."""
    return torch.empty_like(like) if like.dim() <= 5 else like.new_empty(like.shape)


@backend.fake("conv_relu_pool")
def _(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    _check(x, weight, bias, padding)
    *batch, outputs, height, width = _result_shape(x, weight, padding)
    out = x.new_empty([*batch, height, width, outputs]).movedim(-1, -3)
    return out, torch.empty_like(out, dtype=torch.uint8)


@backend.fake("conv_relu_pool_backward")
def _(
    grad: Tensor, x: Tensor, weight: Tensor, index: Tensor, padding: int, needs_x: bool, needs_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    op = "conv_relu_pool_backward"
    _check_kernels(op, x, weight, padding)
    shape = _result_shape(x, weight, padding)
    for name, tensor in (("grad", grad), ("index", index)):
        got = list(tensor.shape)
        expect(op, got == shape, f"{name} must have the shape of the result, {shape}, got {got}")
    return (
        _new_gradient(x) if needs_x else x.new_empty([0]),
        _new_gradient(weight) if needs_weight else x.new_empty([0]),
        x.new_empty(weight.shape[:-3] if needs_weight else [0]),
    )


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, ctx.padding = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # the index has no gradient


@backend.backward("conv_relu_pool", setup_context=_setup_context)
def _(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    x, weight, index = ctx.saved_tensors
    needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
    grad_x, grad_weight, grad_bias = torch.ops.pfl_fast.conv_relu_pool_backward.default(
        grad, x, weight, index, ctx.padding, needs_x, needs_weight or needs_bias
    )
    return grad_x if needs_x else None, grad_weight if needs_weight else None, grad_bias if needs_bias else None, None


backend.once_differentiable("conv_relu_pool")
backend.vmap_to_leading_dimension("conv_relu_pool")
backend.vmap_to_leading_dimension("conv_relu_pool_backward")
