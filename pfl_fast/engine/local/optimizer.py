"""Optimizer steps, for one client or a stack of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.engine.local.linear_gradients import GradientFactors
from pfl_fast.engine.state.part_table import ADAM
from pfl_fast.methods.base import Phase, Tensors

BETAS, EPSILON = (0.9, 0.999), 1e-8  # defaults of torch.optim.Adam
Batcher = Callable[[Callable[..., Any]], Callable[..., Any]]  # of one client -> of a stack


@dataclass(frozen=True)
class StepSettings:
    """Optimizer settings of one round.

    ``stop_at_nan`` ends a client's training at a loss that is not finite; ``bf16`` computes products in bfloat16.
    """

    lr: float
    momentum: float
    weight_decay: float
    seed: int
    round: int
    stop_at_nan: bool = True
    bf16: bool = False

    def for_phase(self, phase: Phase) -> StepSettings:
        """Returns the settings with the overrides of a phase."""
        own = {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay, **phase.sgd}
        return replace(self, lr=own["lr"], momentum=own["momentum"], weight_decay=own["weight_decay"])

    def for_parameter(self, phase: Phase, name: str) -> StepSettings:
        """Returns the settings of one parameter: without momentum and weight decay in parts of ``plain_sgd``."""
        part = name.split(".")[0]
        if part not in phase.plain_sgd:
            return self
        lr = phase.plain_sgd[part]
        return replace(self, lr=self.lr if lr is None else lr, momentum=0.0, weight_decay=0.0)


def identity(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``function``: the batcher of a single client."""
    return function


def takes_factors(phase: Phase, settings: StepSettings) -> bool:
    """Returns whether the phase only subtracts gradients, so that no gradient tensor is needed."""
    return not (phase.edit_gradients or phase.update_mask or phase.adam or phase.proximal or settings.momentum)


def only_steps(phase: Phase) -> bool:
    """Returns whether the phase changes only the parameters it trains, by gradient steps alone."""
    hooks = (phase.after, phase.after_batch, phase.after_epoch, phase.after_step, phase.custom_gradient)
    return not any(hooks)


def update(
    phase: Phase,
    gradients: Tensors,
    tensors: Tensors,
    seed: Tensor,
    settings: StepSettings,
    batcher: Batcher,
    factors: Mapping[str, GradientFactors] = MappingProxyType({}),
    write_buffers: Tensors | None = None,
) -> None:
    """Updates parameters in place.

    Args:
        phase: phase of the step.
        gradients: gradients by parameter name; parameters without one stay unchanged.
        tensors: all tensors of the client or stack by name, including optimizer state.
        seed: noise seed of the step.
        settings: optimizer settings of the phase.
        batcher: ``identity`` or ``torch.vmap``.
        factors: gradients of further parameters as factors, if the phase ``takes_factors``.
        write_buffers: memory for parameters that are read in place and must not be written. Their first update moves
            them there and removes them from this dictionary.
    """
    write_buffers = {} if write_buffers is None else write_buffers
    for name, gradient in factors.items():
        start, tensors[name] = tensors[name], write_buffers.pop(name, tensors[name])
        step = settings.for_parameter(phase, name)
        gradient.sgd_step_(tensors[name], start, step.lr, step.weight_decay)
    for name in write_buffers.keys() & gradients.keys():
        tensors[name] = write_buffers.pop(name).copy_(tensors[name])
    if phase.edit_gradients:
        gradients = batcher(phase.edit_gradients)(tensors, gradients)
    by_adam = [name for name in gradients if name.split(".")[0] in phase.adam]
    by_sgd = [name for name in gradients if name not in by_adam]
    masks = batcher(phase.update_mask)(tensors, seed) if phase.update_mask else {}
    masked = [prefix + name for prefix in ("", "momentum.") for name in by_sgd if name in masks]
    before = {name: tensors[name].clone() for name in masked if name in tensors}
    plain = [name for name in by_sgd if name.split(".")[0] in phase.plain_sgd]
    centers = _centers(phase, [name for name in by_sgd if name not in plain], tensors)
    for strength in dict.fromkeys(strength for _, strength in centers.values()):
        names = [name for name, (_, own) in centers.items() if own == strength]
        ops.sgd_(
            [tensors[name] for name in names],
            [gradients[name] for name in names],
            [tensors[f"momentum.{name}"] for name in names] if settings.momentum else None,
            [tensors[centers[name][0]] for name in names] if strength else None,
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            proximal=strength,
        )
    for name in plain:
        lr = settings.for_parameter(phase, name).lr
        ops.sgd_([tensors[name]], [gradients[name]], lr=lr)
    for name, old in before.items():
        mask = masks[name.removeprefix("momentum.")]
        mask = mask.view(*mask.shape, *([1] * (old.dim() - mask.dim())))
        tensors[name].copy_(torch.where(mask, tensors[name], old))
    for name in by_adam:
        own = [tensors[f"{what}.{name}"] for what in ADAM]
        adam_(tensors[name], gradients[name], *own, lr=phase.adam[name.split(".")[0]])
    if phase.after_step:
        write(batcher(phase.after_step)(tensors), tensors)


def write(values: Mapping[str, Tensor], tensors: Tensors) -> None:
    """Copies ``values`` into ``tensors``, by name."""
    for name, value in values.items():
        tensors[name].copy_(value)


def _centers(phase: Phase, names: list[str], tensors: Tensors) -> dict[str, tuple[str, float]]:
    """Returns the proximal center and strength of each parameter; itself and 0 without a center."""
    found = {}
    for name in names:
        part, _, inside = name.partition(".")
        where, strength = phase.proximal.get(part, ("", 0.0))
        center = f"{where}.{inside}"
        found[name] = (center, strength) if center in tensors else (name, 0.0)
    return found


def adam_(parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, steps: Tensor, *, lr: float) -> None:
    """Updates ``parameter`` in place by one step of ``torch.optim.Adam``.

    ``steps`` counts the steps of this parameter, per client in a stack: clients may have taken different numbers.
    """
    steps.add_(1)
    count = steps.view(*steps.shape, *([1] * (parameter.dim() - steps.dim())))
    mean.lerp_(gradient, 1 - BETAS[0])
    square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    root = (square / (1 - BETAS[1] ** count)).sqrt_().add_(EPSILON)
    parameter.addcdiv_(mean / (1 - BETAS[0] ** count), root, value=-lr)
