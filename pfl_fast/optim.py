"""Optimizers of torch's interface, on the fused operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops.support import FLOATS


class SGD(torch.optim.SGD):
    """``torch.optim.SGD`` whose step is one pass over memory, :func:`pfl_fast.ops.sgd_`.

    Arguments, parameter groups, state dict and results are those of ``torch.optim.SGD``; a state dict of one loads into
    the other. ``maximize``, ``differentiable``, ``fused``, a tensor as learning rate, and sparse gradients run torch's
    step.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    >>> optimizer = SGD([weight], lr=0.5, momentum=0.9)
    >>> weight.square().sum().backward()
    >>> optimizer.step()
    >>> weight.data, optimizer.state_dict()["state"][0]["momentum_buffer"]
    (tensor([0., 0.]), tensor([2., 4.]))
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Performs one step; ``closure`` computes the loss again, and its value is returned."""
        if not all(_runs_fused(group) for group in self.param_groups):
            step: Any = torch.optim.SGD.step
            # The hooks of the optimizer run around this step; torch's own would run them again.
            return (step.__wrapped__ if getattr(step, "hooked", False) else step)(self, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step(group)
        return loss

    def _step(self, group: dict[str, Any]) -> None:
        lists: dict[Any, list[Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                first = bool(group["momentum"]) and self.state[parameter].get("momentum_buffer") is None
                lists.setdefault((parameter.dtype, parameter.device, first), []).append(parameter)
        for (_, _, first), parameters in lists.items():
            buffers = None
            if group["momentum"]:
                for parameter in parameters if first else ():
                    self.state[parameter]["momentum_buffer"] = torch.empty_like(parameter)
                buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            ops.sgd_(
                parameters,
                [_gradient(parameter) for parameter in parameters],
                buffers,
                lr=group["lr"],
                momentum=group["momentum"],
                dampening=group["dampening"],
                weight_decay=group["weight_decay"],
                nesterov=group["nesterov"],
                first_step=first,
            )


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _runs_fused(group: dict[str, Any]) -> bool:
    plain = not (group["maximize"] or group["differentiable"] or group["fused"] or isinstance(group["lr"], Tensor))
    in_range = 0 <= group["momentum"] < 1
    gradients = [p.grad for p in group["params"] if p.grad is not None]
    dense = all(g.layout == torch.strided and g.dtype in FLOATS for g in gradients)
    return plain and in_range and dense
