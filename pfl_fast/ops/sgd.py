"""One step of stochastic gradient descent on a whole model, in place, in one pass over memory.

    g   = grad + proximal * (p - center) + weight_decay * p
    buf = momentum * buf + (1 - dampening) * g
    p  -= lr * (g + momentum * buf if nesterov else buf),  or lr * g without momentum

The proximal pull towards ``center`` (FedProx, Ditto, pFedMe) needs no gradient tensor. In float32 and float64
the result is that of ``torch.optim.SGD`` to the bit, wherever torch's own kernels fuse multiply and add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference


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
        params: the tensors of a model, or blocks ``[N, *shape]`` that hold them for N clients; float64, float32,
            bfloat16 or float16, all the same. Any strides without overlap: contiguous tensors, channels_last ones with
            gradients like them, and slices of stacked blocks are updated where they are, others through a copy.
        grads: one for each of ``params``, of its shape, dtype and device.
        momentum_buffers: likewise; needed with ``momentum``, otherwise not touched. Zeros before the first step.
        center: likewise; needed with ``proximal``, otherwise not read.
        lr: learning rate, not negative.
        momentum: in [0, 1).
        dampening: of the gradient that enters the momentum.
        weight_decay: not negative.
        nesterov: Nesterov momentum; needs ``momentum > 0`` and ``dampening == 0``.
        proximal: strength mu of the pull ``mu * (p - center)``, not negative.
        first_step: sets the buffers to the gradient instead of adding to them. ``torch.optim.SGD`` does so in its first
            step; from zeroed buffers that is the same but for ``dampening``.

    Half types are computed in float32 and rounded once. Nothing is recorded for autograd.

    >>> weight = torch.tensor([1.0, 2.0])
    >>> sgd_([weight], [torch.tensor([0.5, 0.5])], lr=0.5)
    >>> weight
    tensor([0.7500, 1.7500])
    >>> sgd_([weight], [torch.zeros(2)], center=[torch.zeros(2)], lr=0.5, proximal=1.0)   # half way to the centre
    >>> weight
    tensor([0.3750, 0.8750])
    """
    ps, gs = _tensors("params", params), _tensors("grads", grads)
    buffers, centers = _tensors("momentum_buffers", momentum_buffers), _tensors("center", center)
    numbers = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
    for name, value in {**numbers, "proximal": proximal}.items():
        if isinstance(value, Tensor) or not isinstance(value, (int, float)):
            raise TypeError(f"pfl_fast::sgd_: {name} must be a number, got {type(value).__name__}")
    with torch.no_grad():
        if backend.uses_native() and ps:  # without a tensor the dispatcher knows no device
            torch.ops.pfl_fast.sgd_(
                *(ps, gs, buffers, centers),
                *(lr, momentum, dampening, weight_decay, nesterov, proximal, first_step),
            )
            backend.tell_autograd([*ps, *buffers] if momentum > 0 else ps)
        else:
            _check(ps, gs, buffers, centers, lr, momentum, dampening, weight_decay, nesterov, proximal)
            reference.sgd_(
                *(ps, gs, buffers, centers),
                lr=lr,
                momentum=momentum,
                dampening=dampening,
                weight_decay=weight_decay,
                nesterov=nesterov,
                proximal=proximal,
                first_step=first_step,
            )


def _tensors(name: str, value: Sequence[Tensor] | None) -> list[Tensor]:
    if value is None and name in {"momentum_buffers", "center"}:
        return []
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"pfl_fast::sgd_: {name} must be a list of tensors, got {type(value).__name__}")
    for i, item in enumerate(value):
        if not isinstance(item, Tensor):
            raise TypeError(f"pfl_fast::sgd_: {name}[{i}] must be a tensor, got {type(item).__name__}")
    return list(value)


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
) -> None:
    """The contract in csrc/sgd.h, for the paths that do not reach it: the reference and shape-only tensors."""

    def expect(condition: bool, what: str) -> None:
        if not condition:
            raise RuntimeError(f"pfl_fast::sgd_: {what}")

    expect(0 <= lr < math.inf, f"lr must be finite and not negative, got {lr}")
    expect(0 <= momentum < 1, f"momentum must be in [0, 1), got {momentum}")
    expect(math.isfinite(dampening), f"dampening must be finite, got {dampening}")
    expect(0 <= weight_decay < math.inf, f"weight_decay must be finite and not negative, got {weight_decay}")
    expect(0 <= proximal < math.inf, f"proximal must be finite and not negative, got {proximal}")
    expect(
        not nesterov or (momentum > 0 and dampening == 0),
        f"nesterov must have momentum > 0 and dampening 0, got momentum {momentum} and dampening {dampening}",
    )
    for t, p in enumerate(params):
        expect(p.dtype in backend.FLOATS, f"params[{t}] must be float64, float32, bfloat16 or float16, got {p.dtype}")
        for what in ("dtype", "device"):
            mine, first = getattr(p, what), getattr(params[0], what)
            expect(mine == first, f"params[{t}] must have the {what} of params[0], {first}, got {mine}")
    needed = {"grads": grads}
    if momentum > 0:
        needed["momentum_buffers"] = momentum_buffers
    if proximal > 0:
        needed["center"] = center
    for name, tensors in needed.items():
        expect(
            len(tensors) == len(params),
            f"{name} must hold {len(params)} tensors, one for each of params, got {len(tensors)}",
        )
        for t, (x, p) in enumerate(zip(tensors, params, strict=True)):
            for what in ("shape", "dtype", "device"):
                mine, other = getattr(x, what), getattr(p, what)
                expect(mine == other, f"{name}[{t}] must have the {what} of params[{t}], {other}, got {mine}")


@backend.fake("sgd_")
def _(
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
    first_step: bool,  # noqa: ARG001 called by name
) -> None:
    _check(params, grads, momentum_buffers, center, lr, momentum, dampening, weight_decay, nesterov, proximal)


@backend.vmap("sgd_")
def _(
    info: Any,
    in_dims: Any,
    params: list[Tensor],
    grads: list[Tensor],
    momentum_buffers: list[Tensor],
    center: list[Tensor],
    *options: Any,
) -> Any:
    """Stacked parameters are parameters: the batch dimension moves to the front and the step stays one call."""
    read = [(grads, in_dims[1])]
    written = [("params", params, in_dims[0])]
    momentum, proximal = options[1], options[5]
    if momentum > 0:
        written.append(("momentum_buffers", momentum_buffers, in_dims[2]))
    if proximal > 0:
        read.append((center, in_dims[3]))
    everything = [*[(tensors, dims) for _, tensors, dims in written], *read]
    batched = [any(dims[t] is not None for _, dims in everything) for t in range(len(params))]
    for name, _, dims in written:
        for t, dim in enumerate(dims):
            if batched[t] and dim is None:
                raise RuntimeError(
                    f"pfl_fast::sgd_: {name}[{t}] must be batched by vmap as the tensors it is updated with are"
                )

    def front(tensors: list[Tensor], dims: Any) -> list[Tensor]:
        return [
            x if not b else x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)
            for x, d, b in zip(tensors, dims, batched, strict=True)
        ]

    torch.ops.pfl_fast.sgd_(
        front(params, in_dims[0]),
        front(grads, in_dims[1]),
        front(momentum_buffers, in_dims[2]) if momentum > 0 else [],
        front(center, in_dims[3]) if proximal > 0 else [],
        *options,
    )
    return None, None
