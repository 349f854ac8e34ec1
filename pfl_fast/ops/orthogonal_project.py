"""Projections of two extractors' features onto two subspaces, their weighted sum and their inner product.

    g = (f_g A_g) A_g^T        p = (f_p A_p) A_p^T        (with relu: max(0, .) of each)
    fused = alpha g + (1 - alpha) p                       inner = sum over features of g * p

FediOS applies it between extractors and head, with bases A of orthonormal columns. P = A A^T is never stored. P is
symmetric, so with cotangents v and the saved results g and p the backward is

    df_g = (u_g A_g) A_g^T,  u_g = v_g + alpha v_fused + v_inner p        (with relu: only where g > 0)
    df_p = (u_p A_p) A_p^T,  u_p = v_p + (1 - alpha) v_fused + v_inner g  (with relu: only where p > 0)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import (
    all_to_front,
    check_device,
    check_dtype,
    check_float,
    check_numbers,
    check_shape,
    check_tensors,
    expect,
    to_front,
)


def orthogonal_project(
    f_g: Tensor, f_p: Tensor, basis_g: Tensor, basis_p: Tensor, alpha: float, relu: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Projects generic and personal features onto their subspaces and returns their weighted sum and inner products.

    Args:
        f_g: ``[*batch, b, d]``, b samples of generic features; float64, float32, bfloat16 or float16.
        f_p: personal features, of the same shape and dtype.
        basis_g: ``[d, r]``, columns that span the generic subspace, or ``[*batch, d, r]`` for one basis per client.
        basis_p: basis of the personal subspace, likewise; its r may differ.
        alpha: weight of the generic part in ``fused``; any finite number.
        relu: whether to apply ReLU after the projection.

    Returns:
        ``g``, ``p`` and ``fused`` ``[*batch, b, d]`` and ``inner`` ``[*batch, b]``, in the dtype of the features, each
        rounded once from float32 (float64) sums.

    Differentiable once with respect to ``f_g`` and ``f_p``. Bases are constants: they receive no gradient, even with
    ``requires_grad``.

    >>> basis = torch.eye(4)                                     # two coordinates for each subspace
    >>> f = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> g, p, fused, inner = orthogonal_project(f, f, basis[:, :2], basis[:, 2:], 0.5)
    >>> g, p
    (tensor([[1., 2., 0., 0.]]), tensor([[0., 0., 3., 4.]]))
    >>> fused, inner
    (tensor([[0.5000, 1.0000, 1.5000, 2.0000]]), tensor([0.]))
    """
    check_tensors("orthogonal_project", f_g=f_g, f_p=f_p, basis_g=basis_g, basis_p=basis_p)
    check_numbers("orthogonal_project", alpha=alpha)
    if backend.runs_native("orthogonal_project", f_g):
        results = backend.call("orthogonal_project", f_g, f_p, basis_g, basis_p, alpha, relu)
        return cast(tuple[Tensor, Tensor, Tensor, Tensor], results)
    _check(f_g, f_p, basis_g, basis_p, alpha)
    return reference.orthogonal_project(f_g, f_p, basis_g, basis_p, alpha, relu)


def _check(
    f_g: Tensor,
    f_p: Tensor,
    basis_g: Tensor,
    basis_p: Tensor,
    alpha: float,
    op: str = "orthogonal_project",
    names: tuple[str, str] = ("f_g", "f_p"),
) -> None:
    """Raises if an argument violates the contract in csrc/ops/orthogonal_project/contract.h."""
    first, second = names
    check_float(op, first, f_g)
    expect(op, f_g.dim() >= 2, f"{first} must be [*batch, samples, features], got shape {list(f_g.shape)}")
    for name, tensor in {second: f_p, "basis_g": basis_g, "basis_p": basis_p}.items():
        check_float(op, name, tensor)
        check_dtype(op, name, tensor, first, f_g)
        check_device(op, name, tensor, first, f_g)
    check_shape(op, second, f_p, first, f_g)
    for name, basis in {"basis_g": basis_g, "basis_p": basis_p}.items():
        same_batch = basis.dim() == 2 or (basis.dim() == f_g.dim() and basis.shape[:-2] == f_g.shape[:-2])
        expect(
            op,
            same_batch and basis.shape[-2] == f_g.shape[-1],
            f"{name} must be [features, rank] or [*batch, features, rank] for {first} {list(f_g.shape)}, "
            f"got shape {list(basis.shape)}",
        )
    expect(op, math.isfinite(alpha), f"alpha must be finite, got {alpha}")


@backend.fake("orthogonal_project")
def _(f_g: Tensor, f_p: Tensor, basis_g: Tensor, basis_p: Tensor, alpha: float, relu: bool) -> Any:
    _check(f_g, f_p, basis_g, basis_p, alpha)
    return (*(f_g.new_empty(f_g.shape) for _ in range(3)), f_g.new_empty(f_g.shape[:-1]))


@backend.fake("orthogonal_project_backward")
def _(
    v_g: Tensor | None,
    v_p: Tensor | None,
    v_fused: Tensor | None,
    v_inner: Tensor | None,
    g: Tensor,
    p: Tensor,
    basis_g: Tensor,
    basis_p: Tensor,
    alpha: float,
    relu: bool,
    needs_g: bool,
    needs_p: bool,
) -> tuple[Tensor, Tensor]:
    _check(g, p, basis_g, basis_p, alpha, "orthogonal_project_backward", ("g", "p"))
    return g.new_empty(g.shape if needs_g else [0]), g.new_empty(g.shape if needs_p else [0])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, basis_g, basis_p, ctx.alpha, ctx.relu = inputs
    ctx.save_for_backward(output[0], output[1], basis_g, basis_p)


@backend.backward("orthogonal_project", setup_context=_setup_context)
def _(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
    needs_g, needs_p = ctx.needs_input_grad[:2]
    grad_g, grad_p = torch.ops.pfl_fast.orthogonal_project_backward(
        *cotangents, *ctx.saved_tensors, ctx.alpha, ctx.relu, needs_g, needs_p
    )
    return grad_g if needs_g else None, grad_p if needs_p else None, None, None, None, None


backend.once_differentiable("orthogonal_project")


def _batch_bases(bases: Sequence[Tensor], dims: Sequence[int | None], size: int, features: Tensor) -> list[Tensor]:
    """Returns bases for batched features: a basis shared by all samples stays [d, r], others become [*batch, d, r]."""
    results = []
    for basis, dim in zip(bases, dims, strict=True):
        if dim is None and basis.dim() == 2:
            results.append(basis)
            continue
        batched = to_front(basis, dim, size)
        missing = [1] * (features.dim() - batched.dim())
        batched = batched.reshape([size, *missing, *batched.shape[1:]])
        results.append(batched.expand(*features.shape[:-2], *batched.shape[-2:]))
    return results


@backend.vmap("orthogonal_project")
def _(info: Any, in_dims: Any, *arguments: Any) -> Any:
    f_g, f_p = all_to_front(arguments[:2], in_dims[:2], info.batch_size)
    bases = _batch_bases(arguments[2:4], in_dims[2:4], info.batch_size, f_g)
    return torch.ops.pfl_fast.orthogonal_project(f_g, f_p, *bases, *arguments[4:]), (0, 0, 0, 0)


@backend.vmap("orthogonal_project_backward")
def _(info: Any, in_dims: Any, *arguments: Any) -> Any:
    tensors = all_to_front(arguments[:6], in_dims[:6], info.batch_size)
    bases = _batch_bases(arguments[6:8], in_dims[6:8], info.batch_size, tensors[4])
    results = torch.ops.pfl_fast.orthogonal_project_backward(*tensors, *bases, *arguments[8:])
    needs_g, needs_p = arguments[10:]
    return results, (0 if needs_g else None, 0 if needs_p else None)
