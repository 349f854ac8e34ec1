"""Features of two extractors, each projected onto a subspace of its own, their blend and their inner product.

    g = (f_g A_g) A_g^T        p = (f_p A_p) A_p^T        (with relu: max(0, .) of each)
    fused = alpha g + (1 - alpha) p                       inner = sum over features of g * p

What FediOS does between extractors and head, for bases A with orthonormal columns. P = A A^T is never built. With
cotangents v the backward is, where P is symmetric and the results g and p are at hand anyway,

    df_g = (u_g A_g) A_g^T,  u_g = v_g + alpha v_fused + v_inner p        (with relu: only where g > 0)
    df_p = (u_p A_p) A_p^T,  u_p = v_p + (1 - alpha) v_fused + v_inner g  (with relu: only where p > 0)
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference


def orthogonal_project(
    f_g: Tensor, f_p: Tensor, basis_g: Tensor, basis_p: Tensor, alpha: float, relu: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Projects generic and personal features onto their subspaces, blends them and takes their inner products.

    Args:
        f_g: ``[*batch, b, d]``, b samples of generic features; float64, float32, bfloat16 or float16.
        f_p: personal features, same shape and dtype.
        basis_g: ``[d, r]``, columns that span the generic subspace, or ``[*batch, d, r]`` for one basis per client.
        basis_p: the same for the personal subspace; its r may be another one.
        alpha: share of the generic part in ``fused``; any finite number.
        relu: whether negative values are cut off after the projection.

    Returns:
        ``g``, ``p`` and ``fused`` ``[*batch, b, d]`` and ``inner`` ``[*batch, b]``, in the dtype of the features, each
        rounded once from float32 (float64) sums.

    Gradients reach f_g and f_p; once, not twice. Bases are frozen constants: they get no gradient, even if they ask.

    >>> basis = torch.eye(4)                                     # two coordinates for each subspace
    >>> f = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> g, p, fused, inner = orthogonal_project(f, f, basis[:, :2], basis[:, 2:], 0.5)
    >>> g, p
    (tensor([[1., 2., 0., 0.]]), tensor([[0., 0., 3., 4.]]))
    >>> fused, inner
    (tensor([[0.5000, 1.0000, 1.5000, 2.0000]]), tensor([0.]))
    """
    for name, value in (("f_g", f_g), ("f_p", f_p), ("basis_g", basis_g), ("basis_p", basis_p)):
        if not isinstance(value, Tensor):
            raise TypeError(f"pfl_fast::orthogonal_project: {name} must be a tensor, got {type(value).__name__}")
    if isinstance(alpha, Tensor) or not isinstance(alpha, (int, float)):
        raise TypeError(f"pfl_fast::orthogonal_project: alpha must be a number, got {type(alpha).__name__}")
    if backend.uses_native():
        results = backend.call("orthogonal_project", f_g, f_p, basis_g, basis_p, alpha, relu)
        return cast(tuple[Tensor, Tensor, Tensor, Tensor], results)
    _check(f_g, f_p, basis_g, basis_p, alpha)
    return reference.orthogonal_project(f_g, f_p, basis_g, basis_p, alpha, relu)


def _expect(condition: bool, what: str, op: str) -> None:
    if not condition:
        raise RuntimeError(f"pfl_fast::{op}: {what}")


def _check(
    f_g: Tensor,
    f_p: Tensor,
    basis_g: Tensor,
    basis_p: Tensor,
    alpha: float,
    op: str = "orthogonal_project",
    names: tuple[str, str] = ("f_g", "f_p"),
) -> None:
    """The contract in csrc/orthogonal_project.h, for the paths that do not reach it."""
    floats = "float64, float32, bfloat16 or float16"
    first, second = names
    _expect(f_g.dtype in backend.FLOATS, f"{first} must be {floats}, got {f_g.dtype}", op)
    _expect(f_g.dim() >= 2, f"{first} must be [*batch, samples, features], got shape {list(f_g.shape)}", op)
    others = {second: f_p, "basis_g": basis_g, "basis_p": basis_p}
    for name, tensor in others.items():
        _expect(tensor.dtype in backend.FLOATS, f"{name} must be {floats}, got {tensor.dtype}", op)
        _expect(
            tensor.dtype == f_g.dtype, f"{name} must have the dtype of {first}, {f_g.dtype}, got {tensor.dtype}", op
        )
        _expect(
            tensor.device == f_g.device,
            f"{name} must be on the device of {first}, {f_g.device}, got {tensor.device}",
            op,
        )
    _expect(
        f_p.shape == f_g.shape, f"{second} must have the shape of {first}, {list(f_g.shape)}, got {list(f_p.shape)}", op
    )
    for name, basis in (("basis_g", basis_g), ("basis_p", basis_p)):
        fits = basis.dim() == 2 or (basis.dim() == f_g.dim() and basis.shape[:-2] == f_g.shape[:-2])
        _expect(
            fits and basis.shape[-2] == f_g.shape[-1],
            f"{name} must be [features, rank] or [*batch, features, rank] for {first} {list(f_g.shape)}, "
            f"got shape {list(basis.shape)}",
            op,
        )
    _expect(math.isfinite(alpha), f"alpha must be finite, got {alpha}", op)


@backend.fake("orthogonal_project")
def _(f_g: Tensor, f_p: Tensor, basis_g: Tensor, basis_p: Tensor, alpha: float, relu: bool) -> Any:  # noqa: ARG001 called by position
    _check(f_g, f_p, basis_g, basis_p, alpha)
    return (*(f_g.new_empty(f_g.shape) for _ in range(3)), f_g.new_empty(f_g.shape[:-1]))


@backend.fake("orthogonal_project_backward")
def _(
    v_g: Tensor | None,  # noqa: ARG001 called by position
    v_p: Tensor | None,  # noqa: ARG001
    v_fused: Tensor | None,  # noqa: ARG001
    v_inner: Tensor | None,  # noqa: ARG001
    g: Tensor,
    p: Tensor,
    basis_g: Tensor,
    basis_p: Tensor,
    alpha: float,
    relu: bool,  # noqa: ARG001
    needs_g: bool,
    needs_p: bool,
) -> tuple[Tensor, Tensor]:
    _check(g, p, basis_g, basis_p, alpha, "orthogonal_project_backward", ("g", "p"))
    return g.new_empty(g.shape if needs_g else [0]), g.new_empty(g.shape if needs_p else [0])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, basis_g, basis_p, ctx.alpha, ctx.relu = inputs
    ctx.save_for_backward(output[0], output[1], basis_g, basis_p)


@backend.gradient("orthogonal_project", setup_context=_save)
def _(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
    needs_g, needs_p = ctx.needs_input_grad[:2]
    grad_g, grad_p = torch.ops.pfl_fast.orthogonal_project_backward(
        *cotangents, *ctx.saved_tensors, ctx.alpha, ctx.relu, needs_g, needs_p
    )
    return grad_g if needs_g else None, grad_p if needs_p else None, None, None, None, None


def _save_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    pass


@backend.gradient("orthogonal_project_backward", setup_context=_save_nothing)
def _(ctx: Any, *grads: Any) -> Any:  # noqa: ARG001 called by position
    raise RuntimeError(
        "pfl_fast::orthogonal_project: gradients can be taken once, not twice; "
        "use ops.reference.orthogonal_project for that"
    )


def _to_front(x: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    if x is None:
        return None
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _basis_to_front(basis: Tensor, dim: int | None, size: int, dims: int) -> Tensor:
    """A basis for features of ``dims`` dimensions: still shared by all if it was and is not batched."""
    if dim is None and basis.dim() == 2:
        return basis
    batched = cast(Tensor, _to_front(basis, dim, size))
    while batched.dim() < dims:
        batched = batched.unsqueeze(1)
    return batched


def _expand_basis(basis: Tensor, features: Tensor) -> Tensor:
    return basis if basis.dim() == 2 else basis.expand(*features.shape[:-2], *basis.shape[-2:])


@backend.vmap("orthogonal_project")
def _(info: Any, in_dims: Any, *arguments: Any) -> Any:
    size = info.batch_size
    f_g, f_p = (cast(Tensor, _to_front(f, d, size)) for f, d in zip(arguments[:2], in_dims[:2], strict=True))
    bases = [_basis_to_front(b, d, size, f_g.dim()) for b, d in zip(arguments[2:4], in_dims[2:4], strict=True)]
    results = torch.ops.pfl_fast.orthogonal_project(f_g, f_p, *(_expand_basis(b, f_g) for b in bases), *arguments[4:])
    return results, (0, 0, 0, 0)


@backend.vmap("orthogonal_project_backward")
def _(info: Any, in_dims: Any, *arguments: Any) -> Any:
    size = info.batch_size
    tensors = [_to_front(t, d, size) for t, d in zip(arguments[:6], in_dims[:6], strict=True)]
    g = cast(Tensor, tensors[4])
    bases = [_basis_to_front(b, d, size, g.dim()) for b, d in zip(arguments[6:8], in_dims[6:8], strict=True)]
    results = torch.ops.pfl_fast.orthogonal_project_backward(
        *tensors, *(_expand_basis(b, g) for b in bases), *arguments[8:]
    )
    needs_g, needs_p = arguments[10:]
    return results, (0 if needs_g else None, 0 if needs_p else None)
