"""A random feature mask with a straight-through gradient, multiplied with the features (FedPick's selector).

    eps = log u - log(1 - u),  u = philox_uniform(seed, element)      distributed as the difference of two Gumbel draws
    m_s = sigmoid((logits + eps) / tau)
    m   = 1 where m_s >= threshold, else 0, with the gradient of m_s  (hard)
        = m_s                                                         (soft)
    selected = z * m,  rest = z * (1 - m)

    d/dz      = m * g_selected + (1 - m) * g_rest
    d/dlogits = m_s (1 - m_s) / tau * z * (g_selected - g_rest)

The backward draws the noise again from the seed; only z, logits and the seed are saved.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import check_device, check_float, check_int64, check_like, check_tensors, expect


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
        return cast(tuple[Tensor, Tensor], backend.call("gumbel_mask", z, logits, seed, tau, threshold, hard))
    _check(z, logits, seed, tau, threshold)
    return reference.gumbel_mask(z, logits, seed, tau, threshold, hard)


def _check(
    z: Tensor, logits: Tensor, seed: Tensor | None, tau: float, threshold: float, op: str = "gumbel_mask"
) -> None:
    """Raises if an argument violates the contract in csrc/ops/gumbel_mask/contract.h."""
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
    expect(op, 1e-30 <= tau <= 1e30, f"tau must be positive, from 1e-30 to 1e30, got {tau}")
    expect(op, 0 < threshold < 1, f"threshold must be between 0 and 1, got {threshold}")


@backend.fake("gumbel_mask")
def _(
    z: Tensor,
    logits: Tensor,
    seed: Tensor | None,
    tau: float,
    threshold: float,
    hard: bool,  # noqa: ARG001 called by position
) -> tuple[Tensor, Tensor]:
    _check(z, logits, seed, tau, threshold)
    return z.new_empty(z.shape), z.new_empty(z.shape)


@backend.fake("gumbel_mask_backward")
def _(
    grad_selected: Tensor,
    grad_rest: Tensor,
    z: Tensor,
    logits: Tensor,
    seed: Tensor | None,
    tau: float,
    threshold: float,
    hard: bool,  # noqa: ARG001 called by position
) -> tuple[Tensor, Tensor]:
    op = "gumbel_mask_backward"
    _check(z, logits, seed, tau, threshold, op)
    check_like(op, "grad_selected", grad_selected, "z", z)
    check_like(op, "grad_rest", grad_rest, "z", z)
    return z.new_empty(z.shape), z.new_empty(z.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 called by name
    z, logits, seed, *ctx.options = inputs
    ctx.save_for_backward(z, logits, seed)


@backend.backward("gumbel_mask", setup_context=_setup_context)
def _(ctx: Any, grad_selected: Tensor, grad_rest: Tensor) -> tuple[Any, ...]:
    grad_z, grad_logits = torch.ops.pfl_fast.gumbel_mask_backward(
        grad_selected, grad_rest, *ctx.saved_tensors, *ctx.options
    )
    return grad_z, grad_logits, None, None, None, None


def _setup_backward_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 called by name
    *tensors, ctx.tau, ctx.threshold, ctx.hard = inputs
    ctx.save_for_backward(*tensors)


@backend.backward("gumbel_mask_backward", setup_context=_setup_backward_context)
def _(ctx: Any, v_z: Tensor, v_logits: Tensor) -> tuple[Any, ...]:
    """Second derivatives, with slope = dm/dlogits = m_s (1 - m_s) / tau, for the hard mask too.

    d/d g_selected = m v_z + slope z v_logits
    d/d g_rest     = (1 - m) v_z - slope z v_logits
    d/d z          = slope (g_selected - g_rest) v_logits
    d/d logits     = slope (g_selected - g_rest) (v_z + (1 - 2 m_s) / tau z v_logits)
    """
    g_selected, g_rest, z, logits, seed = ctx.saved_tensors
    gumbel_mask = torch.ops.pfl_fast.gumbel_mask
    m_s, one_minus_m_s = gumbel_mask(torch.ones_like(z), logits, seed, ctx.tau, ctx.threshold, False)
    slope = m_s * one_minus_m_s / ctx.tau
    selected_v_z, rest_v_z = gumbel_mask(v_z, logits, seed, ctx.tau, ctx.threshold, ctx.hard)
    mask_term = slope * z * v_logits
    slope_g = slope * (g_selected - g_rest)
    d_logits = slope_g * (v_z + (one_minus_m_s - m_s) / ctx.tau * z * v_logits)
    return selected_v_z + mask_term, rest_v_z - mask_term, slope_g * v_logits, d_logits, None, None, None, None


backend.vmap_to_leading_dimension("gumbel_mask")
backend.vmap_to_leading_dimension("gumbel_mask_backward")
