"""A step of SGD on the weight of a fully connected layer, from the factors of its gradient.

    W <- W - lr (dy^T x + weight_decay W)

The gradient of W is a product of what went into the layer and what came back, both small where samples are few. It need
not exist: W is read once and written once. Rows of W whose outputs had no gradient in any sample are left alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.linear import check_beside_x, check_grad, check_weight
from pfl_fast.ops.route import all_to_front, check_tensors, expect

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
    """Overwrites ``weight`` by ``start - lr * (grad^T x + weight_decay * start)``.

    Args:
        weight: ``[*batch, n, k]``, one matrix per client. float64, float32, bfloat16 or float16.
        grad: ``[*batch, b, n]``, the gradient of what the layer gave. Of the weight's dtype.
        x: ``[*batch, b, k]``, what the layer was given. Of the weight's dtype.
        lr: learning rate, not negative.
        weight_decay: not negative.
        start: ``[*batch, n, k]``, what the step begins from, which is left as it is; None: the weight itself.

    Sums over rows are added in their order in float32 (float64), and the step is rounded as by
    :func:`pfl_fast.ops.sgd_`: in float32 and float64 both give the same bits for one gradient. Nothing is recorded for
    autograd.

    >>> weight = torch.zeros(2, 3)
    >>> linear_step_(weight, torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 2.0, 3.0]]), lr=0.5)
    >>> weight
    tensor([[-0.5000, -1.0000, -1.5000],
            [ 0.0000,  0.0000,  0.0000]])
    """
    check_tensors(OP, weight=weight, grad=grad, x=x)
    if start is not None:
        check_tensors(OP, start=start)
    for name, value in (("lr", lr), ("weight_decay", weight_decay)):
        if isinstance(value, Tensor) or not isinstance(value, (int, float)):
            raise TypeError(f"pfl_fast::{OP}: {name} must be a number, got {type(value).__name__}")
    with torch.no_grad():
        if backend.uses_native():
            torch.ops.pfl_fast.linear_step_.default(weight, grad, x, start, lr, weight_decay)
            backend.tell_autograd([weight])
        else:
            _check(weight, grad, x, start, lr, weight_decay)
            reference.linear_step_(weight, grad, x, lr=lr, weight_decay=weight_decay, start=start)


def _check(weight: Tensor, grad: Tensor, x: Tensor, start: Tensor | None, lr: float, weight_decay: float) -> None:
    """The contract in csrc/linear.h, for the paths that do not reach it: the reference and shape-only tensors."""
    check_weight(OP, x, weight)
    check_grad(OP, grad, x, weight)
    if start is not None:
        shape, own = list(weight.shape), list(start.shape)
        expect(OP, own == shape, f"start must have the shape of weight, {shape}, got {own}")
        check_beside_x(OP, "start", start, x)
    expect(OP, 0 <= lr < math.inf, f"lr must be finite and not negative, got {lr}")
    decay = weight_decay
    expect(OP, 0 <= decay < math.inf, f"weight_decay must be finite and not negative, got {decay}")


@backend.fake(OP)
def _(weight: Tensor, grad: Tensor, x: Tensor, start: Tensor | None, lr: float, weight_decay: float) -> None:
    _check(weight, grad, x, start, lr, weight_decay)


@backend.vmap(OP)
def _(info: Any, in_dims: Any, weight: Tensor, grad: Tensor, x: Tensor, start: Tensor | None, *numbers: float) -> Any:
    if in_dims[0] is None:
        raise RuntimeError(f"pfl_fast::{OP}: weight must be batched by vmap as what it is stepped with is")
    batched = all_to_front((weight, grad, x, start), in_dims, info.batch_size)
    torch.ops.pfl_fast.linear_step_.default(*batched, *numbers)
    return None, None
