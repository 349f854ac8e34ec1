"""A stage of small convolutional networks in one pass: convolution, bias, ReLU and 2x2 max-pooling.

    v = conv2d(x, weight, padding) + bias
    out[.., i, j] = max(0, v[.., 2i, 2j], v[.., 2i, 2j+1], v[.., 2i+1, 2j], v[.., 2i+1, 2j+1])

Images of one or three channels leave little for a general convolution to work with, least of all one that wants many
input channels side by side. Here output channels are. Nothing but one byte per result, which pixel won, is kept for the
backward, and the gradient of the weights only looks at the pixels that did.

Kernels of 5 x 5 over many channels (8 and more) are another case: there the CPU takes Winograd's minimal filtering, a
sixth of the products of the direct sum, forward and backward, at the cost of a digit at most of float32's seven.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.route import check_tensors, expect, save_nothing, to_front

MOST_KERNEL = 7


def conv_relu_pool(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
    """``max_pool2d(relu(conv2d(x, weight, bias, padding=padding)), 2)``, for few input channels or kernels of 5 x 5.

    Args:
        x: ``[*batch, b, c, h, w]`` images. float64, float32, bfloat16 or float16; any strides.
        weight: ``[*batch, o, c, k, k]``, one kernel per client, k from 1 to 7. Of x's dtype.
        bias: ``[*batch, o]``. Of x's dtype.
        padding: zeros on each side, from 0 to k - 1.

    Returns:
        ``[*batch, b, o, (h + 2 padding - k + 1) // 2, (w + 2 padding - k + 1) // 2]``, in memory with channels last, as
        the next convolution wants them.

    Gradients reach ``x``, ``weight`` and ``bias``, once; as in torch, the first of equal pixels gets it, and none where
    the result is 0. Sums are added in a fixed order. With many channels a pixel that is not finite spoils the 4 x 4
    results before pooling that are computed together with those that see it.

    >>> x = torch.tensor([[[[1.0, 2.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 9.0]]]])
    >>> conv_relu_pool(x, torch.ones(1, 1, 2, 2), torch.zeros(1))       # sums of 2x2 pixels: 6, 2, 3, 9
    tensor([[[[9.]]]])
    """
    check_tensors("conv_relu_pool", x=x, weight=weight, bias=bias)
    if backend.uses_native():
        return cast(Tensor, backend.call("conv_relu_pool", x, weight, bias, padding)[0])
    _check(x, weight, bias, padding)
    return reference.conv_relu_pool(x, weight, bias, padding)


def _check(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> None:
    """The contract in csrc/conv_relu_pool.h, for the paths that do not reach it: the reference, shape-only tensors."""
    op = "conv_relu_pool"
    _check_kernels(op, x, weight, padding)
    _check_beside_x(op, "bias", bias, x)
    shape = list(weight.shape[:-3])
    expect(
        op,
        list(bias.shape) == shape,
        f"bias must be [*batch, o] beside weight {list(weight.shape)}, got {list(bias.shape)}",
    )


def _check_beside_x(op: str, name: str, tensor: Tensor, x: Tensor) -> None:
    expect(op, tensor.dtype == x.dtype, f"{name} must have the dtype of x, {x.dtype}, got {tensor.dtype}")
    expect(op, tensor.device == x.device, f"{name} must be on the device of x, {x.device}, got {tensor.device}")


def _check_kernels(op: str, x: Tensor, weight: Tensor, padding: int) -> None:
    expect(op, x.dtype in backend.FLOATS, f"x must be float64, float32, bfloat16 or float16, got {x.dtype}")
    expect(op, x.dim() >= 4, f"x must be [*batch, b, c, h, w], got shape {list(x.shape)}")
    _check_beside_x(op, "weight", weight, x)
    got = list(weight.shape)
    k = got[-1] if got else 0
    expect(
        op,
        weight.dim() == x.dim() and got == [*x.shape[:-4], got[-4], x.shape[-3], k, k],
        f"weight must be [*batch, o, c, k, k] with the batch and the c of x {list(x.shape)}, got {got}",
    )
    expect(
        op,
        1 <= k <= MOST_KERNEL and got[-4] > 0 and got[-3] > 0,
        f"weight must have k from 1 to {MOST_KERNEL} and at least one channel, got {got}; other sizes run as conv2d, "
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
    """In the memory order of ``like`` if one batch dimension is all it has."""
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


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, ctx.padding = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])


@backend.gradient("conv_relu_pool", setup_context=_save)
def _(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight, index = ctx.saved_tensors
    needs_x, needs_kernel, needs_bias, _ = ctx.needs_input_grad
    grad_x, grad_weight, grad_bias = torch.ops.pfl_fast.conv_relu_pool_backward.default(
        grad, x, weight, index, ctx.padding, needs_x, needs_kernel or needs_bias
    )
    return grad_x if needs_x else None, grad_weight if needs_kernel else None, grad_bias if needs_bias else None, None


@backend.gradient("conv_relu_pool_backward", setup_context=save_nothing)
def _(ctx: Any, *grads: Tensor) -> None:  # noqa: ARG001 called by position
    raise RuntimeError(
        "pfl_fast::conv_relu_pool: second derivatives are not implemented; ops.use('reference') has them"
    )


@backend.vmap("conv_relu_pool")
def _(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Any:
    tensors = [to_front(t, d, info.batch_size) for t, d in zip((x, weight, bias), in_dims, strict=False)]
    return torch.ops.pfl_fast.conv_relu_pool.default(*tensors, padding), (0, 0)


@backend.vmap("conv_relu_pool_backward")
def _(info: Any, in_dims: Any, *arguments: Any) -> Any:
    tensors = [to_front(t, d, info.batch_size) for t, d in zip(arguments[:4], in_dims, strict=False)]
    padding, needs_x, needs_weight = arguments[4:]
    results = torch.ops.pfl_fast.conv_relu_pool_backward.default(*tensors, padding, needs_x, needs_weight)
    of_weight = 0 if needs_weight else None
    return results, (0 if needs_x else None, of_weight, of_weight)
