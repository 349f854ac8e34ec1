"""The last layers of FedCP's conditional policy network fused with ``route``: LayerNorm, affine, ReLU, split.

    x = (a - mean(a)) / sqrt(var(a) + eps)          over the 2K values of a row, biased variance
    y = max(0, x * gamma + beta)
    global_part, personal_part = route(h, y, seed, tau)

The backward reuses the mean and ``1 / sqrt(var + eps)`` of each row, ``stats`` ``[*batch, b, 2]``.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.route import check_route
from pfl_fast.ops.support import check_like, check_tensors, expect


def cpn_route(
    h: Tensor, a: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5, seed: Tensor | None = None, tau: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Splits features by ``y = relu(layer_norm(a) * gamma + beta)``: ``(r * h, s * h)``, r and s from ``route``.

    Args:
        h: ``[*batch, b, K]`` features. float64, float32, bfloat16 or float16; any strides.
        a: ``[*batch, b, 2K]`` output of the policy network's last linear layer. Same dtype as ``h``.
        gamma: ``[*batch, 2K]`` LayerNorm weight, one per client. Same dtype as ``h``.
        beta: ``[*batch, 2K]`` LayerNorm bias, one per client. Same dtype as ``h``.
        eps: value added to the variance, above 0.
        seed: None, or ``[*batch]`` int64 for the soft Gumbel-softmax; see :func:`pfl_fast.ops.route`.
        tau: temperature, above 0.

    Returns:
        ``(global_part, personal_part)``, both ``[*batch, b, K]``; their sum is ``h``.

    Differentiable once with respect to ``h``, ``a``, ``gamma`` and ``beta``. Sums over rows are added in a fixed order.

    >>> h, a = torch.tensor([[2.0, 4.0]]), torch.tensor([[9.0, 1.0, 1.0, 1.0]])
    >>> cpn_route(h, a, torch.ones(4), torch.zeros(4))
    (tensor([[1.6993, 2.0000]]), tensor([[0.3007, 2.0000]]))
    """
    check_tensors("cpn_route", h=h, a=a, gamma=gamma, beta=beta)
    if seed is not None:
        check_tensors("cpn_route", seed=seed)
    if backend.runs_native("cpn_route", h):
        return cast(tuple[Tensor, Tensor], backend.call("cpn_route", h, a, gamma, beta, eps, seed, tau)[:2])
    _check("cpn_route", h, a, gamma, beta, seed, tau)
    _check_eps(eps)
    return reference.cpn_route(h, a, gamma, beta, eps, seed, tau)


def _check(op: str, h: Tensor, a: Tensor, gamma: Tensor, beta: Tensor, seed: Tensor | None, tau: float) -> None:
    """Raises if an argument violates the contract in csrc/ops/cpn_route/contract.h."""
    check_route(op, h, a, seed, tau)
    check_like(op, "gamma", gamma, "h", h, [*h.shape[:-2], 2 * h.shape[-1]])
    check_like(op, "beta", beta, "h", h, [*h.shape[:-2], 2 * h.shape[-1]])


def _check_eps(eps: float) -> None:
    expect("cpn_route", math.isfinite(eps) and eps > 0, f"eps must be positive and finite, got {eps}")


@backend.fake("cpn_route")
def _(
    h: Tensor, a: Tensor, gamma: Tensor, beta: Tensor, eps: float, seed: Tensor | None, tau: float
) -> tuple[Tensor, Tensor, Tensor]:
    _check("cpn_route", h, a, gamma, beta, seed, tau)
    _check_eps(eps)
    stats = h.new_empty([*h.shape[:-1], 2], dtype=torch.promote_types(h.dtype, torch.float32))
    return h.new_empty(h.shape), h.new_empty(h.shape), stats


@backend.fake("cpn_route_backward")
def _(
    grad_global: Tensor,
    grad_personal: Tensor,
    h: Tensor,
    a: Tensor,
    gamma: Tensor,
    beta: Tensor,
    stats: Tensor,
    seed: Tensor | None,
    tau: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check("cpn_route_backward", h, a, gamma, beta, seed, tau)
    check_like("cpn_route_backward", "grad_global", grad_global, "h", h)
    check_like("cpn_route_backward", "grad_personal", grad_personal, "h", h)
    return h.new_empty(h.shape), h.new_empty(a.shape), h.new_empty(gamma.shape), h.new_empty(beta.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    h, a, gamma, beta, _, seed, ctx.tau = inputs
    ctx.save_for_backward(h, a, gamma, beta, output[2], seed)
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)  # stats has no gradient


@backend.backward("cpn_route", setup_context=_setup_context)
def _(ctx: Any, grad_global: Tensor | None, grad_personal: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    h, *others = ctx.saved_tensors
    grads = [torch.zeros_like(h) if grad is None else grad for grad in (grad_global, grad_personal)]
    gradients = torch.ops.pfl_fast.cpn_route_backward.default(*grads, h, *others, ctx.tau)
    return (*gradients, None, None, None)


backend.once_differentiable("cpn_route")
backend.vmap_to_leading_dimension("cpn_route")
backend.vmap_to_leading_dimension("cpn_route_backward")
