"""An SGD step on the weight of a fully connected layer, computed from the factors of its gradient.

    W <- W - lr (dy^T x + weight_decay W)

The gradient of W is the product of the layer's input x and the gradient dy of its output, both small for small batches.
The product is never stored: W is read once and written once. Without weight decay and ``start``, rows of W
whose outputs have no gradient in any sample keep their value.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.linear import check_grad, check_weight
from pfl_fast.ops.support import (
    all_to_front,
    check_device,
    check_dtype,
    check_numbers,
    check_shape,
    check_tensors,
    expect,
)

OP = "linear_step_"


def linear_step_(
    weight: Tensor,
    grad: Tensor,
    x: Tensor,
    *,
    lr: float,
    weight_decay: float = 0.0,
    start: Tensor | None = None,
) -> None:
    """Overwrites ``weight`` with ``start - lr * (grad^T x + weight_decay * start)``.

    Args:
        weight: ``[*batch, n, k]``, one matrix per client. float64, float32, bfloat16 or float16.
        grad: ``[*batch, b, n]`` gradient of the layer's output. Same dtype as ``weight``.
        x: ``[*batch, b, k]`` input of the layer. Same dtype as ``weight``.
        lr: learning rate, not negative.
        weight_decay: L2 penalty, not negative.
        start: ``[*batch, n, k]`` weight before the step, which is not modified; None for ``weight`` itself.

    Sums over rows are added in the order of the rows, in float32 (float64 for float64), and the step is rounded as in
    :func:`pfl_fast.ops.sgd_`: given the same gradient, both return the same bits in float32 and float64. Autograd does
    not record the step.

    >>> weight = torch.zeros(2, 3)
    >>> linear_step_(weight, torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 2.0, 3.0]]), lr=0.5)
    >>> weight
    tensor([[-0.5000, -1.0000, -1.5000],
            [ 0.0000,  0.0000,  0.0000]])
    """
    check_tensors(OP, weight=weight, grad=grad, x=x)
    if start is not None:
        check_tensors(OP, start=start)
    check_numbers(OP, lr=lr, weight_decay=weight_decay)
    with torch.no_grad():
        if backend.uses_native():
            torch.ops.pfl_fast.linear_step_.default(weight, grad, x, start, lr, weight_decay)
            backend.mark_modified([weight])
        else:
            _check(weight, grad, x, start, lr, weight_decay)
            reference.linear_step_(weight, grad, x, lr=lr, weight_decay=weight_decay, start=start)


@backend.fake(OP)
def _check(weight: Tensor, grad: Tensor, x: Tensor, start: Tensor | None, lr: float, weight_decay: float) -> None:
    """Raises if an argument violates the contract in csrc/linear.h."""
    check_weight(OP, x, weight)
    check_grad(OP, grad, x, weight)
    if start is not None:
        check_shape(OP, "start", start, "weight", weight)
        check_dtype(OP, "start", start, "x", x)
        check_device(OP, "start", start, "x", x)
    expect(OP, 0 <= lr < math.inf, f"lr must be finite and not negative, got {lr}")
    expect(OP, 0 <= weight_decay < math.inf, f"weight_decay must be finite and not negative, got {weight_decay}")


@backend.vmap(OP)
def _(info: Any, in_dims: Any, weight: Tensor, grad: Tensor, x: Tensor, start: Tensor | None, *numbers: float) -> Any:
    if in_dims[0] is None:
        raise RuntimeError(f"pfl_fast::{OP}: weight must be batched by vmap, as the other arguments are")
    batched = all_to_front((weight, grad, x, start), in_dims[:4], info.batch_size)
    torch.ops.pfl_fast.linear_step_.default(*batched, *numbers)
    return None, None
