"""The four terms of FedPick's loss in one pass over the logits.

    gce = mean_b -log p_g[target]            lce = mean_b -log p_p[target]
    ent = mean_b sum_c p_u log p_u           dis = mean_b KL(p_p || p_g) + KL(p_g || p_p)

With p = softmax(y), one row, r = log p_p - log p_g, and 1/b left out, the gradients are

    d gce / d y_g = p_g - onehot             d dis / d y_g = p_g - p_p - p_g (r - sum_c p_g r)
    d lce / d y_p = p_p - onehot             d dis / d y_p = p_p - p_g + p_p (r - sum_c p_p r)
    d ent / d y_u = p_u (log p_u - sum_c p_u log p_u)

Only the logits and the target are saved for the backward.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import check_device, check_float, check_int64, check_like, check_tensors, expect, is_readable

FourLosses = tuple[Tensor, Tensor, Tensor, Tensor]


def distill_losses(y_g: Tensor, y_p: Tensor, y_u: Tensor, target: Tensor) -> FourLosses:
    """Returns two cross-entropies, a negative entropy and a symmetric KL divergence, each averaged over the batch.

    ``gce = mean CE(y_g)``, ``lce = mean CE(y_p)``, ``ent = mean sum_c p_u log p_u`` (the negative entropy: minimising
    it makes ``y_u`` uncertain), ``dis = mean KL(p_p || p_g) + KL(p_g || p_p)``, all computed from log-softmax.

    Args:
        y_g: ``[*batch, b, C]`` logits of the global classifier; float64, float32, bfloat16 or float16, any strides.
        y_p: logits of the classifier of the relevant features; shape and dtype of ``y_g``.
        y_u: logits of the classifier of the irrelevant features; shape and dtype of ``y_g``.
        target: ``[*batch, b]`` int64 from 0 to C - 1. CUDA targets are not range-checked, to avoid a synchronisation.

    Returns:
        ``gce, lce, ent, dis``, each ``[*batch]``, float64 for float64 logits, else float32; 0 for b = 0.

    Differentiable once with respect to the three logits.

    >>> y = torch.zeros(2, 4)                                     # uniform predictions
    >>> gce, lce, ent, dis = distill_losses(y, y, y, torch.tensor([0, 3]))
    >>> gce, ent, dis
    (tensor(1.3863), tensor(-1.3863), tensor(0.))
    """
    check_tensors("distill_losses", y_g=y_g, y_p=y_p, y_u=y_u, target=target)
    if backend.runs_native("distill_losses", y_g):
        return cast(FourLosses, backend.call("distill_losses", y_g, y_p, y_u, target))
    _check(y_g, y_p, y_u, target, values=True)
    return reference.distill_losses(y_g, y_p, y_u, target)


def _check(
    y_g: Tensor, y_p: Tensor, y_u: Tensor, target: Tensor, values: bool = False, op: str = "distill_losses"
) -> None:
    """Raises if an argument violates csrc/ops/distill_losses/contract.h; ``values`` checks the target's range."""
    check_float(op, "y_g", y_g)
    expect(
        op,
        y_g.dim() >= 2 and y_g.shape[-1] > 0,
        f"y_g must be [*batch, b, classes] with at least one class, got shape {list(y_g.shape)}",
    )
    check_like(op, "y_p", y_p, "y_g", y_g)
    check_like(op, "y_u", y_u, "y_g", y_g)
    check_int64(op, "target", target)
    check_device(op, "target", target, "y_g", y_g)
    expect(
        op,
        target.shape == y_g.shape[:-1],
        f"target must have the shape of y_g without its classes, {list(y_g.shape)}, got {list(target.shape)}",
    )
    if values and is_readable(target) and target.numel():
        lowest, highest = int(target.min()), int(target.max())
        wrong = lowest if lowest < 0 else highest
        expect(op, 0 <= wrong < y_g.shape[-1], f"target must be from 0 to {y_g.shape[-1] - 1}, got {wrong}")


@backend.fake("distill_losses")
def _(y_g: Tensor, y_p: Tensor, y_u: Tensor, target: Tensor) -> FourLosses:
    _check(y_g, y_p, y_u, target)
    gce, lce, ent, dis = (_new_result(y_g) for _ in range(4))
    return gce, lce, ent, dis


def _new_result(y_g: Tensor) -> Tensor:
    return y_g.new_empty(y_g.shape[:-2], dtype=torch.promote_types(y_g.dtype, torch.float32))


@backend.fake("distill_losses_backward")
def _(
    grad_gce: Tensor,
    grad_lce: Tensor,
    grad_ent: Tensor,
    grad_dis: Tensor,
    y_g: Tensor,
    y_p: Tensor,
    y_u: Tensor,
    target: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "distill_losses_backward"
    _check(y_g, y_p, y_u, target, op=op)
    expected = _new_result(y_g)
    for i, grad in enumerate((grad_gce, grad_lce, grad_ent, grad_dis)):
        expect(
            op,
            grad.dtype == expected.dtype and grad.shape == expected.shape and grad.device == expected.device,
            f"grads[{i}] must be {expected.dtype} with the leading dimensions of y_g, {list(y_g.shape)}, got "
            f"{grad.dtype} {list(grad.shape)}",
        )
    return y_g.new_empty(y_g.shape), y_g.new_empty(y_g.shape), y_g.new_empty(y_g.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)
    ctx.set_materialize_grads(False)  # a loss that is not used shares its zeros with the others


@backend.backward("distill_losses", setup_context=_setup_context)
def _(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    given = next((grad for grad in grads if grad is not None), None)
    if given is None:
        return None, None, None, None
    zeros = torch.zeros_like(given) if any(grad is None for grad in grads) else given
    filled = [zeros if grad is None else grad for grad in grads]
    return *torch.ops.pfl_fast.distill_losses_backward(*filled, *ctx.saved_tensors), None


backend.once_differentiable("distill_losses")
backend.vmap_to_leading_dimension("distill_losses")
backend.vmap_to_leading_dimension("distill_losses_backward")
