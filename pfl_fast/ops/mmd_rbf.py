"""Maximum mean discrepancy of two sets of points under a sum of Gaussian kernels.

    D_uv[i, j] = |u_i - v_j|^2        k(D) = sum_a exp(-D / (2 a))
    out = mean over i, j of k(D_xx) + k(D_yy) - 2 k(D_xy)

FedCP and FedPHP use it to keep local features close to global ones. Distances are sums of squared differences. With 16
or more points per set, the CPU uses matrix products of the points minus their mean, if they are accurate enough: if
R^2 sum_a 1/a is at most 64, where R is the largest distance from the mean. Products round k(D) to about 2e-5 at this
limit, and in proportion below it. On both paths equal points have distance exactly 0, and equal sets too.

The backward uses w(D) = -2 k'(D) = sum_a exp(-D / (2 a)) / a, which the forward saves:

    dx_i = 2 v / b^2 * sum_j (w(D_xy[i, j]) (x_i - y_j) - w(D_xx[i, j]) (x_i - x_j))
    dy_j = 2 v / b^2 * sum_i (w(D_xy[i, j]) (y_j - x_i) - w(D_yy[i, j]) (y_j - y_i))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import check_float, check_like, check_tensors, expect

MAX_BANDWIDTHS = 32


def mmd_rbf(x: Tensor, y: Tensor, bandwidths: Sequence[float] = (10.0, 15.0, 20.0, 50.0)) -> Tensor:
    """Returns the mean over all pairs of ``k(D_xx) + k(D_yy) - 2 k(D_xy)`` with ``k(D) = sum_a exp(-D / (2 a))``.

    Args:
        x: ``[*batch, b, K]``, b points of K features; float64, float32, bfloat16 or float16.
        y: second set of points, of the same shape and dtype.
        bandwidths: 1 to 32 numbers a > 0. The default is FedCP's.

    Returns:
        ``[*batch]`` float32 (float64 for float64). 0 for equal sets and for empty ones (b = 0); non-negative up to
        rounding.

    Differentiable once with respect to ``x`` and ``y``.

    >>> x, y = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> mmd_rbf(x, x)
    tensor(0.)
    >>> mmd_rbf(x, y, [12.5])                                     # 2 - 2 exp(-25 / 25)
    tensor(1.2642)
    """
    check_tensors("mmd_rbf", x=x, y=y)
    if not isinstance(bandwidths, (tuple, list)) and (
        isinstance(bandwidths, str) or not isinstance(bandwidths, Sequence)
    ):
        raise TypeError(f"pfl_fast::mmd_rbf: bandwidths must be a sequence of numbers, got {type(bandwidths).__name__}")
    if backend.runs_native("mmd_rbf", x):
        return cast(Tensor, backend.call("mmd_rbf", x, y, bandwidths)[0])
    _check(x, y, bandwidths)
    return reference.mmd_rbf(x, y, bandwidths)


def _check(x: Tensor, y: Tensor, bandwidths: Sequence[float]) -> None:
    """Raises if an argument violates the contract in csrc/ops/mmd_rbf/contract.h."""
    op, count = "mmd_rbf", len(bandwidths)
    _check_points(op, x, y)
    expect(op, 0 < count <= MAX_BANDWIDTHS, f"bandwidths must hold 1 to {MAX_BANDWIDTHS} numbers, got {count}")
    for a in bandwidths:
        expect(op, math.isfinite(a) and a > 0, f"bandwidths must be finite and greater than 0, got {a}")


def _check_points(op: str, x: Tensor, y: Tensor) -> None:
    check_float(op, "x", x)
    check_float(op, "y", y)
    expect(op, x.dim() >= 2, f"x must be [*batch, points, features], got shape {list(x.shape)}")
    check_like(op, "y", y, "x", x)


@backend.fake("mmd_rbf")
def _(x: Tensor, y: Tensor, bandwidths: Sequence[float]) -> tuple[Tensor, Tensor]:
    _check(x, y, bandwidths)
    sum_type = torch.promote_types(x.dtype, torch.float32)
    batch, points = x.shape[:-2], x.shape[-2]
    return x.new_empty(batch, dtype=sum_type), x.new_empty([*batch, 3, points, points], dtype=sum_type)


@backend.fake("mmd_rbf_backward")
def _(grad: Tensor, x: Tensor, y: Tensor, weights: Tensor, needs_x: bool, needs_y: bool) -> tuple[Tensor, Tensor]:
    _check_points("mmd_rbf_backward", x, y)
    return x.new_empty(x.shape if needs_x else [0]), x.new_empty(x.shape if needs_y else [0])


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Sequence[float]], output: tuple[Tensor, Tensor]) -> None:
    x, y, _ = inputs
    ctx.save_for_backward(x, y, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # the weights have no gradient


@backend.backward("mmd_rbf", setup_context=_setup_context)
def _(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
    if grad is None:
        return None, None, None
    x, y, weights = ctx.saved_tensors
    needs_x, needs_y, _ = ctx.needs_input_grad
    grad_x, grad_y = torch.ops.pfl_fast.mmd_rbf_backward(grad, x, y, weights, needs_x, needs_y)
    return grad_x if needs_x else None, grad_y if needs_y else None, None


backend.once_differentiable("mmd_rbf")
backend.vmap_to_leading_dimension("mmd_rbf")
backend.vmap_to_leading_dimension("mmd_rbf_backward")
