"""One in-place SGD step on all parameters of a model, in one pass over memory.

    g   = grad + proximal * (p - center) + weight_decay * p
    buf = momentum * buf + (1 - dampening) * g
    p  -= lr * (g + momentum * buf if nesterov else buf),  or lr * g without momentum

The proximal term towards ``center`` (FedProx, Ditto, pFedMe) needs no gradient tensor. In float32 and float64 the
result equals that of ``torch.optim.SGD`` to the bit wherever torch's own kernels fuse multiply and add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import check_float_list, check_list_like, check_numbers, expect, tensor_list, to_front

OP = "sgd_"


def sgd_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum_buffers: Sequence[Tensor] | None = None,
    center: Sequence[Tensor] | None = None,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    proximal: float = 0.0,
    first_step: bool = False,
) -> None:
    """Updates ``params`` and ``momentum_buffers`` by one step of SGD.

    Args:
        params: parameters of a model, or blocks ``[N, *shape]`` of N clients' parameters; all float64, float32,
            bfloat16 or float16. Any strides without overlap: contiguous tensors, channels_last tensors with
            channels_last gradients, and slices of stacked blocks are updated in place, others through a copy.
        grads: gradients, one per parameter, of its shape, dtype and device.
        momentum_buffers: momentum buffers, likewise; required if ``momentum > 0``, otherwise not modified. Zeros before
            the first step.
        center: centre of the proximal term, likewise; required if ``proximal > 0``, otherwise not read.
        lr: learning rate, not negative.
        momentum: momentum factor in [0, 1).
        dampening: dampening of the gradient added to the momentum.
        weight_decay: L2 penalty, not negative.
        nesterov: Nesterov momentum; requires ``momentum > 0`` and ``dampening == 0``.
        proximal: factor mu of the proximal gradient ``mu * (p - center)``, not negative.
        first_step: True sets the buffers to the gradient instead of adding to them, as ``torch.optim.SGD`` does in its
            first step. With zeroed buffers this differs only if ``dampening`` is not 0.

    Half types are computed in float32 and rounded once. Autograd does not record the step.

    >>> weight = torch.tensor([1.0, 2.0])
    >>> sgd_([weight], [torch.tensor([0.5, 0.5])], lr=0.5)
    >>> weight
    tensor([0.7500, 1.7500])
    >>> sgd_([weight], [torch.zeros(2)], center=[torch.zeros(2)], lr=0.5, proximal=1.0)   # halfway to the centre
    >>> weight
    tensor([0.3750, 0.8750])
    """
    ps, gs = tensor_list(OP, "params", params), tensor_list(OP, "grads", grads)
    buffers = [] if momentum_buffers is None else tensor_list(OP, "momentum_buffers", momentum_buffers)
    centers = [] if center is None else tensor_list(OP, "center", center)
    lists = (ps, gs, buffers, centers)
    options: tuple[Any, ...] = (lr, momentum, dampening, weight_decay, nesterov, proximal, first_step)
    check_numbers(OP, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, proximal=proximal)
    with torch.no_grad():
        if ps and backend.runs_native(OP, ps[0]):  # the dispatcher needs a tensor to choose the device
            torch.ops.pfl_fast.sgd_(*lists, *options)
            backend.mark_modified([*ps, *buffers] if momentum > 0 else ps)
        else:
            _check(*lists, *options)
            reference.sgd_(*lists, *options)


@backend.fake("sgd_")
def _check(
    params: list[Tensor],
    grads: list[Tensor],
    momentum_buffers: list[Tensor],
    center: list[Tensor],
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    proximal: float,
    first_step: bool,
) -> None:
    """Raises if an argument violates the contract in csrc/ops/sgd/contract.h."""
    expect(OP, 0 <= lr < math.inf, f"lr must be finite and not negative, got {lr}")
    expect(OP, 0 <= momentum < 1, f"momentum must be in [0, 1), got {momentum}")
    expect(OP, math.isfinite(dampening), f"dampening must be finite, got {dampening}")
    expect(OP, 0 <= weight_decay < math.inf, f"weight_decay must be finite and not negative, got {weight_decay}")
    expect(OP, 0 <= proximal < math.inf, f"proximal must be finite and not negative, got {proximal}")
    expect(
        OP,
        not nesterov or (momentum > 0 and dampening == 0),
        f"nesterov must have momentum > 0 and dampening 0, got momentum {momentum} and dampening {dampening}",
    )
    check_float_list(OP, "params", params)
    check_list_like(OP, "grads", grads, "params", params)
    if momentum > 0:
        check_list_like(OP, "momentum_buffers", momentum_buffers, "params", params)
    if proximal > 0:
        check_list_like(OP, "center", center, "params", params)


@backend.fake("sgd_tensor_")
def _(param: Tensor, grad: Tensor, momentum_buffer: Tensor | None, center: Tensor | None, *options: Any) -> None:
    """Raises as the fake kernel of ``sgd_``. Recorded programs call this operator: TorchScript removes ``sgd_``."""
    buffers, centers = ([] if tensor is None else [tensor] for tensor in (momentum_buffer, center))
    _check([param], [grad], buffers, centers, *options)


@backend.vmap("sgd_")
def _batched(
    info: Any,
    in_dims: Any,
    params: list[Tensor],
    grads: list[Tensor],
    momentum_buffers: list[Tensor],
    center: list[Tensor],
    *options: Any,
) -> Any:
    """Moves the batch dimension to the front: stacked parameters are updated in one call."""
    momentum, proximal = options[1], options[5]
    written = {"params": in_dims[0], **({"momentum_buffers": in_dims[2]} if momentum > 0 else {})}
    used = [*written.values(), in_dims[1], *([in_dims[3]] if proximal > 0 else [])]
    batched = [any(dims[t] is not None for dims in used) for t in range(len(params))]
    for name, dims in written.items():
        for t, dim in enumerate(dims):
            expect(OP, dim is not None or not batched[t], f"{name}[{t}] must be batched by vmap, as its inputs are")

    def front(tensors: list[Tensor], dims: Any) -> list[Tensor]:
        return [to_front(x, d, info.batch_size) if b else x for x, d, b in zip(tensors, dims, batched, strict=True)]

    torch.ops.pfl_fast.sgd_(
        front(params, in_dims[0]),
        front(grads, in_dims[1]),
        front(momentum_buffers, in_dims[2]) if momentum > 0 else [],
        front(center, in_dims[3]) if proximal > 0 else [],
        *options,
    )
    return None, None


@backend.vmap("sgd_tensor_")
def _(info: Any, in_dims: Any, param: Tensor, grad: Tensor, buffer: Any, center: Any, *options: Any) -> Any:
    """Updates the stacked parameter in one call."""
    lists = [[] if tensor is None else [tensor] for tensor in (param, grad, buffer, center)]
    dims = [[dim] * len(tensors) for dim, tensors in zip(in_dims, lists, strict=False)]
    return _batched(info, dims, *lists, *options)
