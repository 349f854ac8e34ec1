"""Maximum mean discrepancy of two sets of points under a sum of Gaussian kernels.

    D_uv[i, j] = |u_i - v_j|^2        k(D) = sum_a exp(-D / (2 a))
    out = mean over i, j of k(D_xx) + k(D_yy) - 2 k(D_xy)

The term by which FedCP and FedPHP keep local features near global ones. Distances are sums of squared differences, so
that equal points are at distance 0 exactly, and so are equal sets. With w(D) = -2 k'(D) = sum_a exp(-D / (2 a)) / a,
which is all that is kept for it, the backward is

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

MOST_BANDWIDTHS = 32


def mmd_rbf(x: Tensor, y: Tensor, bandwidths: Sequence[float] = (10.0, 15.0, 20.0, 50.0)) -> Tensor:
    """Mean over all pairs of ``k(D_xx) + k(D_yy) - 2 k(D_xy)`` with ``k(D) = sum_a exp(-D / (2 a))``.

    Args:
        x: ``[*batch, b, K]``, b points of K features; float64, float32, bfloat16 or float16.
        y: the other points, same shape and dtype.
        bandwidths: 1 to 32 numbers a > 0. The default is FedCP's.

    Returns:
        ``[*batch]`` float32 (float64 for float64), also for half types: 0 for equal sets and for none (b = 0), and at
        least 0 up to rounding.

    Gradients reach x and y, whichever needs one; once, not twice.

    >>> x, y = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> mmd_rbf(x, x)
    tensor(0.)
    >>> mmd_rbf(x, y, [12.5])                                     # 2 - 2 exp(-25 / 25)
    tensor(1.2642)
    """
    for name, value in (("x", x), ("y", y)):
        if not isinstance(value, Tensor):
            raise TypeError(f"pfl_fast::mmd_rbf: {name} must be a tensor, got {type(value).__name__}")
    if not isinstance(bandwidths, (tuple, list)) and (
        isinstance(bandwidths, str) or not isinstance(bandwidths, Sequence)
    ):
        raise TypeError(f"pfl_fast::mmd_rbf: bandwidths must be a sequence of numbers, got {type(bandwidths).__name__}")
    if backend.uses_native():
        return cast(Tensor, backend.call("mmd_rbf", x, y, bandwidths)[0])
    _check(x, y, bandwidths)
    return reference.mmd_rbf(x, y, bandwidths)


def _expect(condition: bool, what: str, op: str = "mmd_rbf") -> None:
    if not condition:
        raise RuntimeError(f"pfl_fast::{op}: {what}")


def _check(x: Tensor, y: Tensor, bandwidths: Sequence[float]) -> None:
    """The contract in csrc/mmd_rbf.h, for the paths that do not reach it: the reference and shape-only tensors."""
    _check_points(x, y)
    count = len(bandwidths)
    _expect(0 < count <= MOST_BANDWIDTHS, f"bandwidths must hold 1 to {MOST_BANDWIDTHS} numbers, got {count}")
    for a in bandwidths:
        _expect(math.isfinite(a) and a > 0, f"bandwidths must be finite and greater than 0, got {a}")


def _check_points(x: Tensor, y: Tensor, op: str = "mmd_rbf") -> None:
    for name, value in (("x", x), ("y", y)):
        _expect(
            value.dtype in backend.FLOATS,
            f"{name} must be float64, float32, bfloat16 or float16, got {value.dtype}",
            op,
        )
    _expect(y.dtype == x.dtype, f"y must have the dtype of x, {x.dtype}, got {y.dtype}", op)
    _expect(y.device == x.device, f"y must be on the device of x, {x.device}, got {y.device}", op)
    _expect(x.dim() >= 2, f"x must be [*batch, points, features], got shape {list(x.shape)}", op)
    _expect(y.shape == x.shape, f"y must have the shape of x, {list(x.shape)}, got {list(y.shape)}", op)


@backend.fake("mmd_rbf")
def _(x: Tensor, y: Tensor, bandwidths: Sequence[float]) -> tuple[Tensor, Tensor]:
    _check(x, y, bandwidths)
    sum_type = torch.promote_types(x.dtype, torch.float32)
    batch, points = x.shape[:-2], x.shape[-2]
    return x.new_empty(batch, dtype=sum_type), x.new_empty([*batch, 3, points, points], dtype=sum_type)


@backend.fake("mmd_rbf_backward")
def _(grad: Tensor, x: Tensor, y: Tensor, weights: Tensor, needs_x: bool, needs_y: bool) -> tuple[Tensor, Tensor]:  # noqa: ARG001 called by position
    _check_points(x, y, "mmd_rbf_backward")
    return x.new_empty(x.shape if needs_x else [0]), x.new_empty(x.shape if needs_y else [0])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Sequence[float]], output: tuple[Tensor, Tensor]) -> None:
    x, y, _ = inputs
    ctx.save_for_backward(x, y, output[1])
    ctx.mark_non_differentiable(output[1])


@backend.gradient("mmd_rbf", setup_context=_save)
def _(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
    x, y, weights = ctx.saved_tensors
    needs_x, needs_y, _ = ctx.needs_input_grad
    grad_x, grad_y = torch.ops.pfl_fast.mmd_rbf_backward(grad, x, y, weights, needs_x, needs_y)
    return grad_x if needs_x else None, grad_y if needs_y else None, None


def _save_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    pass


@backend.gradient("mmd_rbf_backward", setup_context=_save_nothing)
def _(ctx: Any, *grads: Any) -> Any:  # noqa: ARG001 called by position
    raise RuntimeError("pfl_fast::mmd_rbf: gradients can be taken once, not twice; use ops.reference.mmd_rbf for that")


def _to_front(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


@backend.vmap("mmd_rbf")
def _(info: Any, in_dims: Any, x: Tensor, y: Tensor, bandwidths: Sequence[float]) -> Any:
    x, y = (_to_front(t, d, info.batch_size) for t, d in zip((x, y), in_dims, strict=False))
    return torch.ops.pfl_fast.mmd_rbf(x, y, bandwidths), (0, 0)


@backend.vmap("mmd_rbf_backward")
def _(info: Any, in_dims: Any, *arguments: Any) -> Any:
    tensors = [_to_front(t, d, info.batch_size) for t, d in zip(arguments[:4], in_dims, strict=False)]
    needs_x, needs_y = arguments[4:]
    results = torch.ops.pfl_fast.mmd_rbf_backward(*tensors, needs_x, needs_y)
    return results, (0 if needs_x else None, 0 if needs_y else None)
