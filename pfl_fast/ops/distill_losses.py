"""The four terms of FedPick's loss in one pass over the logits.

    gce = mean_b -log p_g[target]            lce = mean_b -log p_p[target]
    ent = mean_b sum_c p_u log p_u           dis = mean_b KL(p_p || p_g) + KL(p_g || p_p)

With p = softmax(y), one row, r = log p_p - log p_g, and 1/b left out, the gradients are

    d gce / d y_g = p_g - onehot             d dis / d y_g = p_g - p_p - p_g (r - sum_c p_g r)
    d lce / d y_p = p_p - onehot             d dis / d y_p = p_p - p_g + p_p (r - sum_c p_p r)
    d ent / d y_u = p_u (log p_u - sum_c p_u log p_u)

Only the logits and the target are kept for the backward.
"""

from __future__ import annotations

from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def distill_losses(y_g: Tensor, y_p: Tensor, y_u: Tensor, target: Tensor) -> Four:
    """Two cross-entropies, minus an entropy, and a symmetric KL divergence, as means over the batch.

    ``gce = mean CE(y_g)``, ``lce = mean CE(y_p)``, ``ent = mean sum_c p_u log p_u`` (minus the entropy: minimising it
    makes ``y_u`` uncertain), ``dis = mean KL(p_p || p_g) + KL(p_g || p_p)``, all through log-softmax.

    Args:
        y_g: ``[*batch, b, C]`` logits of the global classifier; float64, float32, bfloat16 or float16, any strides.
        y_p: like ``y_g``, of the classifier of the relevant features.
        y_u: like ``y_g``, of the classifier of the irrelevant features.
        target: ``[*batch, b]`` int64 from 0 to C - 1. Targets on a GPU are not looked at, as that would stall it.

    Returns:
        ``gce, lce, ent, dis``, each ``[*batch]``, float64 for float64 logits, else float32; 0 for b = 0.

    Gradients reach all three logits, once: there are no second derivatives.

    >>> y = torch.zeros(2, 4)                                     # uniform predictions
    >>> gce, lce, ent, dis = distill_losses(y, y, y, torch.tensor([0, 3]))
    >>> gce, ent, dis
    (tensor(1.3863), tensor(-1.3863), tensor(0.))
    """
    for name, value in (("y_g", y_g), ("y_p", y_p), ("y_u", y_u), ("target", target)):
        if not isinstance(value, Tensor):
            raise TypeError(f"pfl_fast::distill_losses: {name} must be a tensor, got {type(value).__name__}")
    if backend.uses_native():
        return cast(Four, backend.call("distill_losses", y_g, y_p, y_u, target))
    _check(y_g, y_p, y_u, target, values=True)
    return reference.distill_losses(y_g, y_p, y_u, target)


def _expect(condition: bool, op: str, what: str) -> None:
    if not condition:
        raise RuntimeError(f"pfl_fast::{op}: {what}")


def _check(
    y_g: Tensor, y_p: Tensor, y_u: Tensor, target: Tensor, values: bool = False, op: str = "distill_losses"
) -> None:
    """The contract in csrc/distill_losses.h, for the paths that do not reach it."""
    _expect(y_g.dtype in backend.FLOATS, op, f"y_g must be float64, float32, bfloat16 or float16, got {y_g.dtype}")
    _expect(
        y_g.dim() >= 2 and y_g.shape[-1] > 0,
        op,
        f"y_g must be [*batch, b, classes] with at least one class, got shape {list(y_g.shape)}",
    )
    for name, y in (("y_p", y_p), ("y_u", y_u)):
        _expect(y.dtype == y_g.dtype, op, f"{name} must have the dtype of y_g, {y_g.dtype}, got {y.dtype}")
        _expect(y.device == y_g.device, op, f"{name} must be on the device of y_g, {y_g.device}, got {y.device}")
        _expect(y.shape == y_g.shape, op, f"{name} must have the shape of y_g, {list(y_g.shape)}, got {list(y.shape)}")
    _expect(target.dtype == torch.int64, op, f"target must be an int64 tensor, got {target.dtype}")
    _expect(target.device == y_g.device, op, f"target must be on the device of y_g, {y_g.device}, got {target.device}")
    _expect(
        target.shape == y_g.shape[:-1],
        op,
        f"target must have the shape of y_g without its classes, {list(y_g.shape)}, got {list(target.shape)}",
    )
    if values and backend.has_values(target) and target.numel():
        lowest, highest = int(target.min()), int(target.max())
        wrong = lowest if lowest < 0 else highest
        _expect(0 <= wrong < y_g.shape[-1], op, f"target must be from 0 to {y_g.shape[-1] - 1}, got {wrong}")


@backend.fake("distill_losses")
def _(y_g: Tensor, y_p: Tensor, y_u: Tensor, target: Tensor) -> Four:
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
        _expect(
            grad.dtype == expected.dtype and grad.shape == expected.shape and grad.device == expected.device,
            op,
            f"grads[{i}] must be {expected.dtype} with the leading dimensions of y_g, {list(y_g.shape)}, got "
            f"{grad.dtype} {list(grad.shape)}",
        )
    return y_g.new_empty(y_g.shape), y_g.new_empty(y_g.shape), y_g.new_empty(y_g.shape)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 called by name
    ctx.save_for_backward(*inputs)


@backend.gradient("distill_losses", setup_context=_save_inputs)
def _(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    return *torch.ops.pfl_fast.distill_losses_backward(*grads, *ctx.saved_tensors), None


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """There is no second backward to save for."""


@backend.gradient("distill_losses_backward", setup_context=_save_nothing)
def _(ctx: Any, *grads: Tensor) -> NoReturn:  # noqa: ARG001 called by position
    raise RuntimeError(
        "pfl_fast::distill_losses: second derivatives must come from reference.distill_losses, "
        'got a call that differentiates twice; use `with ops.use("reference"):`'
    )


def _to_front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


@backend.vmap("distill_losses")
def _(info: Any, in_dims: Any, *tensors: Tensor) -> Any:
    batched = [_to_front(t, d, info.batch_size) for t, d in zip(tensors, in_dims, strict=True)]
    return torch.ops.pfl_fast.distill_losses(*batched), (0, 0, 0, 0)


@backend.vmap("distill_losses_backward")
def _(info: Any, in_dims: Any, *tensors: Tensor) -> Any:
    batched = [_to_front(t, d, info.batch_size) for t, d in zip(tensors, in_dims, strict=True)]
    return torch.ops.pfl_fast.distill_losses_backward(*batched), (0, 0, 0)
