"""A stochastic feature mask with a straight-through gradient, and both products with it (FedPick's selector).

    eps = log u - log(1 - u),  u = philox_uniform(seed, element)      the law of a difference of two Gumbel draws
    m_s = sigmoid((logits + eps) / tau)
    m   = 1 where m_s >= threshold, else 0, with the gradient of m_s  (hard)
        = m_s                                                         (soft)
    selected = z * m,  rest = z * (1 - m)

    d/dz      = m * g_selected + (1 - m) * g_rest
    d/dlogits = m_s (1 - m_s) / tau * z * (g_selected - g_rest)

The backward draws the noise again from the seed; only z, logits and the seed are kept.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference


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
        logits: like ``z``.
        seed: ``[*batch]`` int64, one per client; a scalar tensor for one client. Elements are counted inside the
            remaining dimensions, so stacked clients draw what they draw alone. May be None without noise.
        tau: temperature of the soft mask, 1e-30 to 1e30.
        threshold: between 0 and 1. The comparison is made as ``logits + noise >= tau * log(threshold / (1 -
            threshold))``, which no rounding of the sigmoid disturbs.
        hard: each value goes bit for bit to one of the results and 0 to the other; otherwise both get their share.
        noise: False for evaluation: at threshold 0.5 the hard mask is then ``logits >= 0``, whatever ``tau`` is.

    Returns:
        ``selected`` and ``rest``, like ``z``.

    Gradients reach ``z`` and ``logits``, also twice.

    >>> z, logits = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, 0.0, 2.0])
    >>> gumbel_mask(z, logits, None, noise=False)
    (tensor([0., 2., 3.]), tensor([1., 0., 0.]))
    >>> selected, rest = gumbel_mask(z, logits, torch.tensor(7))
    >>> torch.equal(selected + rest, z)
    True
    """
    _expect_tensor("z", z)
    _expect_tensor("logits", logits)
    if noise:
        _expect_tensor("seed", seed)
    used = seed if noise else None
    if backend.uses_native():
        return cast(tuple[Tensor, Tensor], backend.call("gumbel_mask", z, logits, used, tau, threshold, hard))
    _check(z, logits, used, tau, threshold)
    return reference.gumbel_mask(z, logits, used, tau, threshold, hard)


def _expect_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"pfl_fast::gumbel_mask: {name} must be a tensor, got {type(value).__name__}")


def _check(
    z: Tensor, logits: Tensor, seed: Tensor | None, tau: float, threshold: float, op: str = "gumbel_mask"
) -> None:
    """The contract in csrc/gumbel_mask.h, for the paths that do not reach it."""

    def expect(condition: bool, what: str) -> None:
        if not condition:
            raise RuntimeError(f"pfl_fast::{op}: {what}")

    expect(z.dtype in backend.FLOATS, f"z must be float64, float32, bfloat16 or float16, got {z.dtype}")
    _expect_like("logits", logits, z, op)
    if seed is not None:
        expect(seed.dtype == torch.int64, f"seed must be an int64 tensor, got {seed.dtype}")
        expect(seed.device == z.device, f"seed must be on the device of z, {z.device}, got {seed.device}")
        expect(
            seed.shape == z.shape[: seed.dim()],
            f"seed must have the leading dimensions of z, {list(z.shape)}, got shape {list(seed.shape)}",
        )
    expect(1e-30 <= tau <= 1e30, f"tau must be positive, from 1e-30 to 1e30, got {tau}")
    expect(0 < threshold < 1, f"threshold must be between 0 and 1, got {threshold}")


def _expect_like(name: str, tensor: Tensor, z: Tensor, op: str) -> None:
    for what, mine, theirs in (
        ("have the dtype of", tensor.dtype, z.dtype),
        ("be on the device of", tensor.device, z.device),
        ("have the shape of", list(tensor.shape), list(z.shape)),
    ):
        if mine != theirs:
            raise RuntimeError(f"pfl_fast::{op}: {name} must {what} z, {theirs}, got {mine}")


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
    _expect_like("grad_selected", grad_selected, z, op)
    _expect_like("grad_rest", grad_rest, z, op)
    return z.new_empty(z.shape), z.new_empty(z.shape)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 called by name
    z, logits, seed, *ctx.options = inputs
    ctx.save_for_backward(z, logits, seed)


@backend.gradient("gumbel_mask", setup_context=_save_inputs)
def _(ctx: Any, grad_selected: Tensor, grad_rest: Tensor) -> tuple[Any, ...]:
    grad_z, grad_logits = torch.ops.pfl_fast.gumbel_mask_backward(
        grad_selected, grad_rest, *ctx.saved_tensors, *ctx.options
    )
    return grad_z, grad_logits, None, None, None, None


def _save_backward_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 called by name
    *tensors, ctx.tau, ctx.threshold, ctx.hard = inputs
    ctx.save_for_backward(*tensors)


@backend.gradient("gumbel_mask_backward", setup_context=_save_backward_inputs)
def _(ctx: Any, v_z: Tensor, v_logits: Tensor) -> tuple[Any, ...]:
    """Second derivatives, with slope = m_s (1 - m_s) / tau = dm/dlogits, also for the hard mask.

    d/d g_selected = m v_z + slope z v_logits
    d/d g_rest     = (1 - m) v_z - slope z v_logits
    d/d z          = slope (g_selected - g_rest) v_logits
    d/d logits     = slope (g_selected - g_rest) (v_z + (1 - 2 m_s) / tau z v_logits)
    """
    g_selected, g_rest, z, logits, seed = ctx.saved_tensors
    split = torch.ops.pfl_fast.gumbel_mask
    soft, opposite = split(torch.ones_like(z), logits, seed, ctx.tau, ctx.threshold, False)
    slope = soft * opposite / ctx.tau
    through_z, past_z = split(v_z, logits, seed, ctx.tau, ctx.threshold, ctx.hard)
    through_mask = slope * z * v_logits
    pull = slope * (g_selected - g_rest)
    d_logits = pull * (v_z + (opposite - soft) / ctx.tau * z * v_logits)
    return through_z + through_mask, past_z - through_mask, pull * v_logits, d_logits, None, None, None, None


def _to_front(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    if tensor is None or dim is not None:
        return tensor if tensor is None else tensor.movedim(cast(int, dim), 0)
    return tensor.expand(size, *tensor.shape)


@backend.vmap("gumbel_mask")
def _(info: Any, in_dims: Any, z: Tensor, logits: Tensor, seed: Tensor | None, *options: Any) -> Any:
    tensors = [_to_front(t, d, info.batch_size) for t, d in zip((z, logits, seed), in_dims, strict=False)]
    return torch.ops.pfl_fast.gumbel_mask(*tensors, *options), (0, 0)


@backend.vmap("gumbel_mask_backward")
def _(info: Any, in_dims: Any, *arguments: Any) -> Any:
    tensors = [_to_front(t, d, info.batch_size) for t, d in zip(arguments[:5], in_dims, strict=False)]
    return torch.ops.pfl_fast.gumbel_mask_backward(*tensors, *arguments[5:]), (0, 0)
