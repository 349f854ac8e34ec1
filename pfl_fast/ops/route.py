"""Each feature shared out between a global and a personal part: what a conditional policy decides (FedCP).

    [r; s] = softmax over the pair (a[.., :K] + eps, a[.., K:]) / tau
    global_part = r * h,  personal_part = s * h

Both shares come from one exponential and neither by subtraction from 1, so a share near 0 keeps its digits.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference


def route(h: Tensor, a: Tensor, seed: Tensor | None = None, tau: float = 1.0) -> tuple[Tensor, Tensor]:
    """Splits features by a pair of logits: ``(r * h, s * h)`` with ``[r; s] = softmax((a0 + eps, a1) / tau)``.

    Args:
        h: ``[*batch, b, K]`` features. float64, float32, bfloat16 or float16; any strides.
        a: ``[*batch, b, 2K]``, the policy's output after its activation: the first K are the logits of the global
            share r, the last K those of the personal share s. Of h's dtype.
        seed: without one eps is 0. With one, ``[*batch]`` int64 (a scalar for one client), the soft Gumbel-softmax:
            the difference of two Gumbel variables is logistic, so ``eps = log(u / (1 - u))`` with u the client's
            uniform numbers over ``[b, K]`` (see :func:`pfl_fast.ops.philox_uniform`).
        tau: temperature, above 0.

    Returns:
        ``(global_part, personal_part)``, both ``[*batch, b, K]``; they add up to h.

    Gradients reach ``h`` and ``a``, once; the noise is drawn again in the backward, not stored.

    >>> h, a = torch.tensor([[2.0, 4.0]]), torch.tensor([[0.0, 50.0, 0.0, 0.0]])
    >>> route(h, a)
    (tensor([[1., 4.]]), tensor([[1.0000e+00, 7.7150e-22]]))
    """
    check_tensors("route", h=h, a=a)
    if seed is not None:
        check_tensors("route", seed=seed)
    if backend.uses_native():
        return cast(tuple[Tensor, Tensor], backend.call("route", h, a, seed, tau))
    check_route("route", h, a, seed, tau)
    return reference.route(h, a, seed, tau)


def check_tensors(op: str, **arguments: object) -> None:
    """Anything else than a tensor is named before it reaches torch."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"pfl_fast::{op}: {name} must be a tensor, got {type(value).__name__}")


def expect(op: str, condition: bool, what: str) -> None:
    """Raises what is wrong with an argument of ``op``, as csrc/check.h does."""
    if not condition:
        raise RuntimeError(f"pfl_fast::{op}: {what}")


def check_route(op: str, h: Tensor, a: Tensor, seed: Tensor | None, tau: float) -> None:
    """The contract in csrc/route.h, for the paths that do not reach it: the reference and shape-only tensors."""
    expect(op, h.dtype in backend.FLOATS, f"h must be float64, float32, bfloat16 or float16, got {h.dtype}")
    expect(op, h.dim() >= 2, f"h must be [*batch, b, K], got shape {list(h.shape)}")
    check_beside_h(op, "a", a, h, [*h.shape[:-1], 2 * h.shape[-1]])
    if seed is not None:
        expect(op, seed.dtype == torch.int64, f"seed must be an int64 tensor, got {seed.dtype}")
        expect(op, seed.device == h.device, f"seed must be on the device of h, {h.device}, got {seed.device}")
        expect(
            op,
            list(seed.shape) == list(h.shape[:-2]),
            f"seed must have shape {list(h.shape[:-2])} beside h {list(h.shape)}, got {list(seed.shape)}",
        )
    expect(op, math.isfinite(tau) and tau > 0, f"tau must be positive and finite, got {tau}")


def check_beside_h(op: str, name: str, tensor: Tensor, h: Tensor, shape: list[int]) -> None:
    """Whether a tensor has h's dtype and device, and this shape."""
    expect(op, tensor.dtype == h.dtype, f"{name} must have the dtype of h, {h.dtype}, got {tensor.dtype}")
    expect(op, tensor.device == h.device, f"{name} must be on the device of h, {h.device}, got {tensor.device}")
    expect(
        op,
        list(tensor.shape) == shape,
        f"{name} must have shape {shape} beside h {list(h.shape)}, got {list(tensor.shape)}",
    )


@backend.fake("route")
def _(h: Tensor, a: Tensor, seed: Tensor | None, tau: float) -> tuple[Tensor, Tensor]:
    check_route("route", h, a, seed, tau)
    return h.new_empty(h.shape), h.new_empty(h.shape)


@backend.fake("route_backward")
def _(
    grad_global: Tensor, grad_personal: Tensor, h: Tensor, a: Tensor, seed: Tensor | None, tau: float
) -> tuple[Tensor, Tensor]:
    check_route("route_backward", h, a, seed, tau)
    check_beside_h("route_backward", "grad_global", grad_global, h, list(h.shape))
    check_beside_h("route_backward", "grad_personal", grad_personal, h, list(h.shape))
    return h.new_empty(h.shape), h.new_empty(a.shape)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 called by name
    h, a, seed, ctx.tau = inputs
    ctx.save_for_backward(h, a, seed)


@backend.gradient("route", setup_context=_save_inputs)
def _(ctx: Any, grad_global: Tensor, grad_personal: Tensor) -> tuple[Tensor, Tensor, None, None]:
    h, a, seed = ctx.saved_tensors
    grad_h, grad_a = torch.ops.pfl_fast.route_backward.default(grad_global, grad_personal, h, a, seed, ctx.tau)
    return grad_h, grad_a, None, None


def save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """The context of a backward that only says that it is not there."""


@backend.gradient("route_backward", setup_context=save_nothing)
def _(ctx: Any, *grads: Tensor) -> None:  # noqa: ARG001 called by position
    raise RuntimeError("pfl_fast::route: second derivatives are not implemented; ops.use('reference') has them")


def to_front(x: Tensor, dim: int | None, size: int) -> Tensor:
    """The batch dimension first; an argument without one is repeated, without a copy."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def all_to_front(tensors: tuple[Tensor | None, ...], in_dims: Any, size: int) -> list[Tensor | None]:
    """:func:`to_front` for the leading arguments of an operator, of which some may be absent."""
    return [None if x is None else to_front(x, d, size) for x, d in zip(tensors, in_dims, strict=False)]


@backend.vmap("route")
def _(info: Any, in_dims: Any, h: Tensor, a: Tensor, seed: Tensor | None, tau: float) -> Any:
    batched = all_to_front((h, a, seed), in_dims, info.batch_size)
    return torch.ops.pfl_fast.route.default(*batched, tau), (0, 0)


@backend.vmap("route_backward")
def _(
    info: Any,
    in_dims: Any,
    grad_global: Tensor,
    grad_personal: Tensor,
    h: Tensor,
    a: Tensor,
    seed: Tensor | None,
    tau: float,
) -> Any:
    batched = all_to_front((grad_global, grad_personal, h, a, seed), in_dims, info.batch_size)
    return torch.ops.pfl_fast.route_backward.default(*batched, tau), (0, 0)
