"""A fully connected layer for small batches.

    y = x W^T + b        dx = dy W        dW = dy^T x        db = sum over rows of dy

Clients train with batches of ten to a hundred samples. A general GEMM is tuned for many rows and reaches only part of
the processor's speed with so few. These kernels read the weights once, in memory order. On the CPU they also skip
zeros if there are many, as after a ReLU or a mask: the same sums from fewer products.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import (
    all_to_front,
    check_device,
    check_dtype,
    check_float,
    check_tensors,
    fail,
)

# Shapes that run natively; torch computes the others. Decided by the shape of one client, so that stacked clients and
# single ones take the same path.
ROWS = range(2, 129)  # one row is memory-bound; from 129 rows on torch's GEMM is as fast
MIN_PRODUCTS = 1 << 19  # b k n: below, the overhead of the call exceeds the gain


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes ``torch.nn.functional.linear(x, weight, bias)``, fast for few rows and for stacked clients.

    Args:
        x: ``[*batch, b, k]``, b rows of k values. float64, float32, bfloat16 or float16.
        weight: ``[*batch, n, k]``, one matrix per client. Same dtype as ``x``.
        bias: ``[*batch, n]`` of the same dtype, or None.

    Returns:
        ``[*batch, b, n]``.

    Differentiable once with respect to ``x``, ``weight`` and ``bias``. Sums are added in a fixed order, in float32
    (float64 for float64). With one row, many rows or little work, and inside ``torch.func.grad``, torch's own product
    runs instead, in torch's order. Terms with an exact zero in ``x`` or the gradient may be skipped, so 0 * NaN and
    0 * inf may give 0.

    >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]), torch.tensor([0.5, -0.5]))
    tensor([[11.5000, 16.5000]])
    """
    check_tensors("linear", x=x, weight=weight)
    if bias is not None:
        check_tensors("linear", bias=bias)
    if not backend.uses_native():
        _check(x, weight, bias)
        return reference.linear(x, weight, bias)
    if torch_is_faster(x, weight) or _inside_functorch_derivative():
        _check(x, weight, bias)
        return _torch_linear(x, weight, bias)
    return cast(Tensor, backend.call("linear", x, weight, bias))


def torch_is_faster(x: Tensor, weight: Tensor) -> bool:
    """Returns whether torch's own product is faster for the shape of one client."""
    if x.dim() < 2 or weight.dim() < 2:
        return False
    rows, inputs = x.shape[-2:]
    return not (ROWS.start <= rows < ROWS.stop and rows * inputs * weight.shape[-2] >= MIN_PRODUCTS)


def _inside_functorch_derivative() -> bool:
    """Returns whether ``torch.func`` is taking a derivative; it cannot differentiate registered operators."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return False
    kinds = torch._C._functorch.TransformType
    stack = torch._C._functorch.get_interpreter_stack() or []
    return any(level.key() in (kinds.Grad, kinds.Jvp) for level in stack)


def _torch_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):  # keep the dtype of the inputs
        with torch.autocast(x.device.type, enabled=False):
            return _torch_linear(x, weight, bias)
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
    product = x @ weight.mT
    return product if bias is None else product + bias.unsqueeze(-2)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raises if an argument violates the contract in csrc/linear.h.

    Messages are formatted on failure only: this runs before products that take a few microseconds.
    """
    check_weight("linear", x, weight)
    if bias is not None:
        check_dtype("linear", "bias", bias, "x", x)
        check_device("linear", "bias", bias, "x", x)
        if bias.shape != weight.shape[:-1]:
            fail("linear", f"bias must be [*batch, n] for weight {list(weight.shape)}, got {list(bias.shape)}")


def check_weight(op: str, x: Tensor, weight: Tensor) -> None:
    """Raises unless ``x`` is [*batch, b, k] and ``weight`` is [*batch, n, k] with the same dtype and device."""
    check_float(op, "x", x)
    if x.dim() < 2:
        fail(op, f"x must be [*batch, b, k], got shape {list(x.shape)}")
    check_dtype(op, "weight", weight, "x", x)
    check_device(op, "weight", weight, "x", x)
    if weight.dim() != x.dim() or weight.shape[-1] != x.shape[-1] or weight.shape[:-2] != x.shape[:-2]:
        expected = f"[*batch, n, k] with the batch and the k of x {list(x.shape)}"
        fail(op, f"weight must be {expected}, got {list(weight.shape)}")


def check_grad(op: str, grad: Tensor, x: Tensor, weight: Tensor) -> None:
    """Raises unless ``grad`` has the shape of the layer's output and the dtype and device of ``x``."""
    check_dtype(op, "grad", grad, "x", x)
    check_device(op, "grad", grad, "x", x)
    shape = [*x.shape[:-1], weight.shape[-2]]
    if list(grad.shape) != shape:
        fail(op, f"grad must have the shape of the result, {shape}, got {list(grad.shape)}")


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


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:  # noqa: ARG001 called by name
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


@backend.backward("linear", setup_context=_setup_context)
def _(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None
    needs = ctx.needs_input_grad
    gradients = torch.ops.pfl_fast.linear_backward.default(grad, *ctx.saved_tensors, *needs)
    return tuple(gradient if needed else None for gradient, needed in zip(gradients, needs, strict=True))


backend.once_differentiable("linear")
backend.vmap_to_leading_dimension("linear")


@backend.vmap("linear_backward")
def _(info: Any, in_dims: Any, grad: Tensor, x: Tensor, weight: Tensor, *needs: bool) -> Any:
    tensors = all_to_front((grad, x, weight), in_dims[:3], info.batch_size)
    results = torch.ops.pfl_fast.linear_backward.default(*tensors, *needs)
    return results, tuple(0 if needed else None for needed in needs)
