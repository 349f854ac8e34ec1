"""A fully connected layer for few rows.

    y = x W^T + b        dx = dy W        dW = dy^T x        db = sum over rows of dy

Clients train with batches of ten to a hundred samples. General matrix products are made for many rows: with so few
they reach a part of the processor's speed. These read the weights once, as they lie in memory. On the CPU they also
leave out zeros where there are many, as behind a ReLU or a mask: the same sums, fewer products.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from pfl_fast.ops import backend, reference
from pfl_fast.ops.route import all_to_front, check_tensors, expect, save_nothing

# What runs natively, by the shape of one client: alone or stacked, it is decided alike. The rest is left to torch.
ROWS = range(2, 129)  # one row is no matter of arithmetic, and with many, general products are as fast
LEAST_PRODUCTS = 1 << 19  # b k n: with fewer, calling costs more than is saved


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear(x, weight, bias)``, made for few rows and stacked clients.

    Args:
        x: ``[*batch, b, k]``, b rows of k values. float64, float32, bfloat16 or float16.
        weight: ``[*batch, n, k]``, one matrix per client. Of x's dtype.
        bias: ``[*batch, n]`` of x's dtype, or None.

    Returns:
        ``[*batch, b, n]``.

    Gradients reach ``x``, ``weight`` and ``bias``, once. Sums are added in a fixed order, in float32 (float64). With
    one row, many rows or little work, and inside ``torch.func.grad``, torch's own product runs instead, in torch's
    order. Where x is zero, or the gradient is, it may not matter what that is multiplied with: NaN and infinity
    need not spread through a product with zero.

    >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]), torch.tensor([0.5, -0.5]))
    tensor([[11.5000, 16.5000]])
    """
    check_tensors("linear", x=x, weight=weight)
    if bias is not None:
        check_tensors("linear", bias=bias)
    if not backend.uses_native():
        _check(x, weight, bias)
        return reference.linear(x, weight, bias)
    if is_for_torch(x, weight) or _is_differentiated():
        _check(x, weight, bias)
        return _by_torch(x, weight, bias)
    return cast(Tensor, backend.call("linear", x, weight, bias))


def is_for_torch(x: Tensor, weight: Tensor) -> bool:
    """Whether torch's own product is the faster one; by the shape of one client."""
    if x.dim() < 2 or weight.dim() < 2:
        return False
    rows, inputs = x.shape[-2:]
    return not (ROWS.start <= rows < ROWS.stop and rows * inputs * weight.shape[-2] >= LEAST_PRODUCTS)


def _is_differentiated() -> bool:
    """Whether ``torch.func`` takes derivatives here, which it cannot do of registered operators."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return False
    kinds = torch._C._functorch.TransformType
    stack = torch._C._functorch.get_interpreter_stack() or []
    return any(level.key() in (kinds.Grad, kinds.Jvp) for level in stack)


def _by_torch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):  # no operator changes its types
        with torch.autocast(x.device.type, enabled=False):
            return _by_torch(x, weight, bias)
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
    product = x @ weight.mT
    return product if bias is None else product + bias.unsqueeze(-2)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """The contract in csrc/linear.h, for the paths that do not reach it: torch's product, shape-only tensors.

    Messages are only made where there is something to say: this runs before products that take a few microseconds.
    """
    op = "linear"
    check_weight(op, x, weight)
    if bias is not None:
        check_beside_x(op, "bias", bias, x)
        if bias.shape != weight.shape[:-1]:
            got = list(bias.shape)
            expect(op, False, f"bias must be [*batch, n] beside weight {list(weight.shape)}, got {got}")


def check_beside_x(op: str, name: str, tensor: Tensor, x: Tensor) -> None:
    """Of the dtype of x, on its device."""
    if tensor.dtype != x.dtype:
        expect(op, False, f"{name} must have the dtype of x, {x.dtype}, got {tensor.dtype}")
    if tensor.device != x.device:
        expect(op, False, f"{name} must be on the device of x, {x.device}, got {tensor.device}")


def check_weight(op: str, x: Tensor, weight: Tensor) -> None:
    """What x and weight must be for each other."""
    if x.dtype not in backend.FLOATS:
        expect(op, False, f"x must be float64, float32, bfloat16 or float16, got {x.dtype}")
    if x.dim() < 2:
        expect(op, False, f"x must be [*batch, b, k], got shape {list(x.shape)}")
    check_beside_x(op, "weight", weight, x)
    shape, own = weight.shape, x.shape
    if len(shape) != len(own) or shape[-1] != own[-1] or shape[:-2] != own[:-2]:
        what = f"weight must be [*batch, n, k] with the batch and the k of x {list(own)}"
        expect(op, False, f"{what}, got {list(shape)}")


def check_grad(op: str, grad: Tensor, x: Tensor, weight: Tensor) -> None:
    """What the gradient of the result must be."""
    check_beside_x(op, "grad", grad, x)
    shape = [*x.shape[:-1], weight.shape[-2]]
    expect(op, list(grad.shape) == shape, f"grad must have the shape of the result, {shape}, got {list(grad.shape)}")


@backend.fake("linear")
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    _check(x, weight, bias)
    return x.new_empty([*x.shape[:-1], weight.shape[-2]])


@backend.fake("linear_backward")
def _(
    grad: Tensor, x: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool, needs_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    check_weight("linear_backward", x, weight)
    check_grad("linear_backward", grad, x, weight)
    return (
        x.new_empty(x.shape if needs_x else [0]),
        x.new_empty(weight.shape if needs_weight else [0]),
        x.new_empty(weight.shape[:-1] if needs_bias else [0]),
    )


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:  # noqa: ARG001 called by name
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


@backend.gradient("linear", setup_context=_save)
def _(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None
    needs = ctx.needs_input_grad
    gradients = torch.ops.pfl_fast.linear_backward.default(grad, *ctx.saved_tensors, *needs)
    return tuple(gradient if needed else None for gradient, needed in zip(gradients, needs, strict=True))


@backend.gradient("linear_backward", setup_context=save_nothing)
def _(ctx: Any, *grads: Tensor) -> None:  # noqa: ARG001 called by position
    raise RuntimeError("pfl_fast::linear: second derivatives are not implemented; ops.use('reference') has them")


@backend.vmap("linear")
def _(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    return torch.ops.pfl_fast.linear.default(*all_to_front((x, weight, bias), in_dims, info.batch_size)), 0


@backend.vmap("linear_backward")
def _(info: Any, in_dims: Any, grad: Tensor, x: Tensor, weight: Tensor, *needs: bool) -> Any:
    tensors = all_to_front((grad, x, weight), in_dims, info.batch_size)
    results = torch.ops.pfl_fast.linear_backward.default(*tensors, *needs)
    return results, tuple(0 if needed else None for needed in needs)
