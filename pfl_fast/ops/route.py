"""Splits each feature into a global and a personal share, as chosen by FedCP's conditional policy network.

    [r; s] = softmax over the pair (a[.., :K] + eps, a[.., K:]) / tau
    global_part = r * h,  personal_part = s * h

    d/dh = r * g_global + s * g_personal
    d/da = [d; -d],  d = r * s / tau * h * (g_global - g_personal)

Both shares are computed from one exponential, neither as 1 minus the other, so a share near 0 keeps its precision.

This file is the template for a new operator; see CONTRIBUTING.md.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import check_device, check_float, check_int64, check_like, check_shape, check_tensors, expect


def route(h: Tensor, a: Tensor, seed: Tensor | None = None, tau: float = 1.0) -> tuple[Tensor, Tensor]:
    """Splits features by a pair of logits: ``(r * h, s * h)`` with ``[r; s] = softmax((a0 + eps, a1) / tau)``.

    Args:
        h: ``[*batch, b, K]`` features. float64, float32, bfloat16 or float16; any strides.
        a: ``[*batch, b, 2K]`` output of the policy network after its activation: logits of the global share r (first
            K), then of the personal share s (last K). Same dtype as ``h``.
        seed: None for eps = 0. Otherwise ``[*batch]`` int64 (a scalar for one client) for the soft Gumbel-softmax:
            the difference of two Gumbel variables is logistic, so ``eps = log(u / (1 - u))`` with u the client's
            uniform numbers over ``[b, K]`` (see :func:`pfl_fast.ops.philox_uniform`).
        tau: temperature, above 0.

    Returns:
        ``(global_part, personal_part)``, both ``[*batch, b, K]``; their sum is ``h``.

    Differentiable once with respect to ``h`` and ``a``. The backward draws the noise again from the seed.

    >>> h, a = torch.tensor([[2.0, 4.0]]), torch.tensor([[0.0, 50.0, 0.0, 0.0]])
    >>> route(h, a)
    (tensor([[1., 4.]]), tensor([[1.0000e+00, 7.7150e-22]]))
    """
    check_tensors("route", h=h, a=a)
    if seed is not None:
        check_tensors("route", seed=seed)
    if backend.runs_native("route", h):
        return cast(tuple[Tensor, Tensor], backend.call("route", h, a, seed, tau))
    check_route("route", h, a, seed, tau)
    return reference.route(h, a, seed, tau)


def check_route(op: str, h: Tensor, a: Tensor, seed: Tensor | None, tau: float) -> None:
    """Raises if an argument violates the contract in csrc/ops/route/contract.h."""
    check_float(op, "h", h)
    expect(op, h.dim() >= 2, f"h must be [*batch, b, K], got shape {list(h.shape)}")
    check_like(op, "a", a, "h", h, [*h.shape[:-1], 2 * h.shape[-1]])
    if seed is not None:
        check_int64(op, "seed", seed)
        check_device(op, "seed", seed, "h", h)
        check_shape(op, "seed", seed, "h", h, h.shape[:-2])
    expect(op, math.isfinite(tau) and tau > 0, f"tau must be positive and finite, got {tau}")


@backend.fake("route")
def _(h: Tensor, a: Tensor, seed: Tensor | None, tau: float) -> tuple[Tensor, Tensor]:
    check_route("route", h, a, seed, tau)
    return h.new_empty(h.shape), h.new_empty(h.shape)


@backend.fake("route_backward")
def _(
    grad_global: Tensor, grad_personal: Tensor, h: Tensor, a: Tensor, seed: Tensor | None, tau: float
) -> tuple[Tensor, Tensor]:
    check_route("route_backward", h, a, seed, tau)
    check_like("route_backward", "grad_global", grad_global, "h", h)
    check_like("route_backward", "grad_personal", grad_personal, "h", h)
    return h.new_empty(h.shape), h.new_empty(a.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    h, a, seed, ctx.tau = inputs
    ctx.save_for_backward(h, a, seed)


@backend.backward("route", setup_context=_setup_context)
def _(ctx: Any, grad_global: Tensor, grad_personal: Tensor) -> tuple[Tensor, Tensor, None, None]:
    grad_h, grad_a = torch.ops.pfl_fast.route_backward.default(grad_global, grad_personal, *ctx.saved_tensors, ctx.tau)
    return grad_h, grad_a, None, None


backend.once_differentiable("route")
backend.vmap_to_leading_dimension("route")
backend.vmap_to_leading_dimension("route_backward")
