"""One step of the optimizer for the parts whose turn it is, for one client or a stack of them."""

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

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam, as everywhere
Batcher = Callable[[Callable[..., Any]], Callable[..., Any]]  # makes a function of one client one of a stack


@dataclass(frozen=True)
class StepSettings:
    """How parameters are stepped in one round.

    Attributes:
        lr: learning rate of the round.
        momentum: of SGD.
        weight_decay: of SGD.
        seed: of the run.
        round: its number, from 1.
        stop_at_nan: end a client's training at the first loss that is not finite.
    """

    lr: float
    momentum: float
    weight_decay: float
    seed: int
    round: int
    stop_at_nan: bool = True

    def for_phase(self, phase: Phase) -> StepSettings:
        """The same, with what a phase has in its place."""
        own = {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay, **phase.sgd}
        return replace(self, lr=own["lr"], momentum=own["momentum"], weight_decay=own["weight_decay"])


def identity(function: Callable[..., Any]) -> Callable[..., Any]:
    """For one client a function is what it is."""
    return function


def takes_factors(phase: Phase, step_settings: StepSettings) -> bool:
    """Whether a gradient is only ever subtracted, so that nobody needs it as a tensor."""
    return not (phase.edit_gradients or phase.update_mask or phase.adam or phase.proximal or step_settings.momentum)


def only_steps(phase: Phase) -> bool:
    """Whether a phase changes nothing but the parameters it trains, and those by their gradients alone."""
    hooks = (phase.after, phase.after_batch, phase.after_epoch, phase.after_step, phase.custom_gradient)
    return not any(hooks)


def update(
    phase: Phase,
    gradients: Tensors,
    tensors: Tensors,
    seed: Tensor,
    step_settings: StepSettings,
    batcher: Batcher,
    factors: Mapping[str, GradientFactors] = MappingProxyType({}),
    room: Tensors | None = None,
) -> None:
    """Steps parameters in place.

    Args:
        phase: what is special about it.
        gradients: by name of the parameter; those that are not named stay.
        tensors: all of the client's, or the stack's, by name, the optimizer's too.
        seed: of the step's noise.
        descent: learning rate and the like.
        lift: ``alone`` or ``torch.vmap``.
        factors: gradients of other parameters, where the phase ``takes_factors``.
        room: memory for parameters that are borrowed and must not be written to; they move there by their first step,
            after which they are no longer in it.
    """
    room = {} if room is None else room
    for name, gradient in factors.items():
        start, tensors[name] = tensors[name], room.pop(name, tensors[name])
        gradient.sgd_step_(tensors[name], start, step_settings.lr, step_settings.weight_decay)
    for name in room.keys() & gradients.keys():
        tensors[name] = room.pop(name).copy_(tensors[name])
    if phase.edit_gradients:
        gradients = batcher(phase.edit_gradients)(tensors, gradients)
    by_adam = [name for name in gradients if name.split(".")[0] in phase.adam]
    by_sgd = [name for name in gradients if name not in by_adam]
    flags = batcher(phase.update_mask)(tensors, seed) if phase.update_mask else {}
    before = _copies(tensors, [name for name in by_sgd if name in flags])
    centers = _centers(phase, by_sgd, tensors)
    for strength in dict.fromkeys(strength for _, strength in centers.values()):
        names = [name for name, (_, own) in centers.items() if own == strength]
        _sgd(names, gradients, tensors, step_settings, {name: centers[name][0] for name in names}, strength)
    for name, old in before.items():
        flag = flags[name.removeprefix("momentum.")]
        flag = flag.view(*flag.shape, *([1] * (old.dim() - flag.dim())))
        tensors[name].copy_(torch.where(flag, tensors[name], old))
    for name in by_adam:
        own = [tensors[f"{what}.{name}"] for what in ADAM]
        adam_(tensors[name], gradients[name], *own, lr=phase.adam[name.split(".")[0]])
    if phase.after_step:
        write(batcher(phase.after_step)(tensors), tensors)


def write(values: Mapping[str, Tensor], tensors: Tensors) -> None:
    """Overwrites tensors by name."""
    for name, value in values.items():
        tensors[name].copy_(value)


def _copies(tensors: Tensors, names: list[str]) -> Tensors:
    """Of parameters and their momentum."""
    all_names = [*names, *(f"momentum.{name}" for name in names)]
    return {name: tensors[name].clone() for name in all_names if name in tensors}


def _centers(phase: Phase, names: list[str], tensors: Tensors) -> dict[str, tuple[str, float]]:
    """For each parameter what it is pulled to and how strongly; itself, and not at all, where there is nothing."""
    found = {}
    for name in names:
        part, _, inside = name.partition(".")
        where, strength = phase.proximal.get(part, ("", 0.0))
        center = f"{where}.{inside}"
        found[name] = (center, strength) if center in tensors else (name, 0.0)
    return found


def _sgd(
    names: list[str],
    gradients: Tensors,
    tensors: Tensors,
    step_settings: StepSettings,
    centers: Mapping[str, str],
    pull: float,
) -> None:
    ops.sgd_(
        [tensors[name] for name in names],
        [gradients[name] for name in names],
        [tensors[f"momentum.{name}"] for name in names] if step_settings.momentum else None,
        [tensors[centers[name]] for name in names] if pull else None,
        lr=step_settings.lr,
        momentum=step_settings.momentum,
        weight_decay=step_settings.weight_decay,
        proximal=pull,
    )


def adam_(parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, steps: Tensor, *, lr: float) -> None:
    """One step of Adam in place, as ``torch.optim.Adam`` has it.

    ``steps`` counts those of this parameter, of each client in a stack on its own: others may have taken fewer.
    """
    steps.add_(1)
    count = steps.view(*steps.shape, *([1] * (parameter.dim() - steps.dim())))
    mean.lerp_(gradient, 1 - BETAS[0])
    square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    root = (square / (1 - BETAS[1] ** count)).sqrt_().add_(EPSILON)
    parameter.addcdiv_(mean / (1 - BETAS[0] ** count), root, value=-lr)
