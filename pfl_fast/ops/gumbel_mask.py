"""A random feature mask with a straight-through gradient, multiplied with the features (FedPick's selector).

    eps = log u - log(1 - u),  u = philox_uniform(seed, element)      distributed as the difference of two Gumbel draws
    m_s = sigmoid((logits + eps) / tau)
    m   = 1 where m_s >= threshold, else 0, with the gradient of m_s  (hard)
        = m_s                                                         (soft)
    selected = z * m,  rest = z * (1 - m)

    d/dz      = m * g_selected + (1 - m) * g_rest
    d/dlogits = m_s (1 - m_s) / tau * z * (g_selected - g_rest)

The forward saves ``noisy = logits + eps``, so the backward draws no noise.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import check_device, check_float, check_int64, check_like, check_shape, check_tensors, expect


def gumbel_mask(
    z: Tensor,
    logits: Tensor,
    seed: Tensor | None,
    tau: float = 1.0,
    threshold: float = 0.5,
    hard: bool = True,
    noise: bool = True,
) -> tuple[Tensor, Tensor]:
    """Splits features by a random mask: ``selected = z * m`` and ``rest = z * (1 - m)``.

    ``m_s = sigmoid((logits + log u - log(1 - u)) / tau)``; hard: ``m = 1[m_s >= threshold]`` with the gradient of
    ``m_s``; soft: ``m = m_s``.

    Args:
        z: ``[*batch, *shape]`` features; float64, float32, bfloat16 or float16, any strides.
        logits: mask logits, of the shape and dtype of ``z``.
        seed: ``[*batch]`` int64, one seed per client; a scalar tensor for one client. Noise is indexed within the
            remaining dimensions, so a client draws the same noise stacked and alone. May be None if ``noise`` is False.
        tau: temperature of the soft mask, 1e-30 to 1e30.
        threshold: between 0 and 1. Compared as ``logits + noise >= tau * log(threshold / (1 - threshold))``, which
            rounding of the sigmoid does not affect.
        hard: True copies each value unchanged into one of the results, with 0 in the other; False splits it by ``m_s``.
        noise: False for evaluation. At threshold 0.5 the hard mask is then ``logits >= 0`` for any ``tau``.

    Returns:
        ``selected`` and ``rest``, of the shape and dtype of ``z``.

    Differentiable twice with respect to ``z`` and ``logits``.

    >>> z, logits = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, 0.0, 2.0])
    >>> gumbel_mask(z, logits, None, noise=False)
    (tensor([0., 2., 3.]), tensor([1., 0., 0.]))
    >>> selected, rest = gumbel_mask(z, logits, torch.tensor(7))
    >>> torch.equal(selected + rest, z)
    True
    """
    check_tensors("gumbel_mask", z=z, logits=logits)
    if noise:
        check_tensors("gumbel_mask", seed=seed)
    else:
        seed = None
    if backend.runs_native("gumbel_mask", z):
        return cast(tuple[Tensor, Tensor], backend.call("gumbel_mask", z, logits, seed, tau, threshold, hard)[:2])
    _check(z, logits, seed)
    _check_options("gumbel_mask", tau, threshold)
    return reference.gumbel_mask(z, logits, seed, tau, threshold, hard)


def _check(z: Tensor, logits: Tensor, seed: Tensor | None) -> None:
    """Raises if a tensor violates the contract in csrc/ops/gumbel_mask/contract.h."""
    op = "gumbel_mask"
    check_float(op, "z", z)
    check_like(op, "logits", logits, "z", z)
    if seed is not None:
        check_int64(op, "seed", seed)
        check_device(op, "seed", seed, "z", z)
        expect(
            op,
            seed.shape == z.shape[: seed.dim()],
            f"seed must have the leading dimensions of z, {list(z.shape)}, got shape {list(seed.shape)}",
        )


def _check_options(op: str, tau: float, threshold: float) -> None:
    expect(op, 1e-30 <= tau <= 1e30, f"tau must be positive, from 1e-30 to 1e30, got {tau}")
    expect(op, 0 < threshold < 1, f"threshold must be between 0 and 1, got {threshold}")


@backend.fake("gumbel_mask")
def _(
    z: Tensor, logits: Tensor, seed: Tensor | None, tau: float, threshold: float, hard: bool
) -> tuple[Tensor, Tensor, Tensor]:
    _check(z, logits, seed)
    _check_options("gumbel_mask", tau, threshold)
    noisy = z.new_empty(z.shape, dtype=torch.promote_types(z.dtype, torch.float32))
    return z.new_empty(z.shape), z.new_empty(z.shape), noisy


@backend.fake("gumbel_mask_backward")
def _(
    grad_selected: Tensor, grad_rest: Tensor, z: Tensor, noisy: Tensor, tau: float, threshold: float, hard: bool
) -> tuple[Tensor, Tensor]:
    op = "gumbel_mask_backward"
    check_float(op, "z", z)
    check_like(op, "grad_selected", grad_selected, "z", z)
    check_like(op, "grad_rest", grad_rest, "z", z)
    check_device(op, "noisy", noisy, "z", z)
    check_shape(op, "noisy", noisy, "z", z)
    _check_options(op, tau, threshold)
    return z.new_empty(z.shape), z.new_empty(z.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    z, _, _, *ctx.options = inputs
    ctx.save_for_backward(z, output[2])
    ctx.set_materialize_grads(False)  # noisy has a gradient in second derivatives only


@backend.backward("gumbel_mask", setup_context=_setup_context)
def _(ctx: Any, grad_selected: Tensor | None, grad_rest: Tensor | None, grad_noisy: Tensor | None) -> tuple[Any, ...]:
    z, noisy = ctx.saved_tensors
    grad_z = grad_logits = None
    if grad_selected is not None or grad_rest is not None:
        grads = [torch.zeros_like(z) if grad is None else grad for grad in (grad_selected, grad_rest)]
        grad_z, grad_logits = torch.ops.pfl_fast.gumbel_mask_backward(*grads, z, noisy, *ctx.options)
    if grad_noisy is not None:
        grad_noisy = grad_noisy.to(z.dtype)
        grad_logits = grad_noisy if grad_logits is None else grad_logits + grad_noisy
    return grad_z, grad_logits, None, None, None, None


def _setup_backward_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.tau, ctx.threshold, ctx.hard = inputs
    ctx.save_for_backward(*tensors)


@backend.backward("gumbel_mask_backward", setup_context=_setup_backward_context)
def _(ctx: Any, v_z: Tensor, v_logits: Tensor) -> tuple[Any, ...]:
    """Second derivatives, with slope = dm/dlogits = m_s (1 - m_s) / tau, for the hard mask too.

    d/d g_selected = m v_z + slope z v_logits
    d/d g_rest     = (1 - m) v_z - slope z v_logits
    d/d z          = slope (g_selected - g_rest) v_logits
    d/d noisy      = slope (g_selected - g_rest) (v_z + (1 - 2 m_s) / tau z v_logits)
    """
    dtype, noisy = ctx.saved_tensors[2].dtype, ctx.saved_tensors[3]
    g_selected, g_rest, z, v_z, v_logits = (x.to(noisy.dtype) for x in (*ctx.saved_tensors[:3], v_z, v_logits))
    gumbel_mask = torch.ops.pfl_fast.gumbel_mask
    m_s, one_minus_m_s, _ = gumbel_mask(torch.ones_like(z), noisy, None, ctx.tau, ctx.threshold, False)
    slope = m_s * one_minus_m_s / ctx.tau
    selected_v_z, rest_v_z, _ = gumbel_mask(v_z, noisy, None, ctx.tau, ctx.threshold, ctx.hard)
    mask_term = slope * z * v_logits
    slope_g = slope * (g_selected - g_rest)
    d_noisy = slope_g * (v_z + (one_minus_m_s - m_s) / ctx.tau * z * v_logits)
    gradients = (x.to(dtype) for x in (selected_v_z + mask_term, rest_v_z - mask_term, slope_g * v_logits))
    return *gradients, d_noisy, None, None, None


backend.vmap_to_leading_dimension("gumbel_mask")
backend.vmap_to_leading_dimension("gumbel_mask_backward")
