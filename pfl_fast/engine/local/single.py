"""Local training of one client; :mod:`pfl_fast.engine.local.stacked` trains many at once with the same steps and draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.local.linear_gradients import GradientFactors, LinearGradients
from pfl_fast.engine.local.modules import bind, evaluate_at, set_mode
from pfl_fast.engine.local.optimizer import StepSettings, identity, only_steps, takes_factors, update, write
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.methods.base import Batch, Method, Phase, PhaseProgress, Tensors
from pfl_fast.models import batch_norm_tensors
from pfl_fast.nn import seed_dropout, seed_names
from pfl_fast.randomness import key


class Interrupted(Exception):  # noqa: N818 says what it is
    """The run was asked to stop; raised between two steps.

    Attributes:
        signal: by which signal, if it was one.
    """

    signal: int | None = None


@dataclass
class LocalReport:
    """What a client says about its local training.

    Attributes:
        client: which.
        samples: trained on, epochs counted.
        steps: taken.
        loss: mean over samples.
        recorded: the method's quantities, mean over samples.
        problem: what was first not finite, if anything.
        data_seconds: seconds spent on loading batches.
        test_seconds: seconds spent on testing after local training; set by the caller.
    """

    client: int
    samples: int = 0
    steps: int = 0
    loss: float = 0.0
    recorded: dict[str, float] = field(default_factory=dict)
    problem: str | None = None
    data_seconds: float = 0.0
    test_seconds: float = 0.0

    def add(self, size: int, loss: float, recorded: dict[str, float]) -> None:
        """One step on ``size`` samples; means are taken as it goes."""
        self.samples += size
        self.steps += 1
        share = size / self.samples
        self.loss += (loss - self.loss) * share
        for name, value in recorded.items():
            before = self.recorded.get(name, 0.0)
            self.recorded[name] = before + (value - before) * share
        if self.problem is None and not math.isfinite(loss):
            self.problem = f"the loss of step {self.steps} is {loss}"


class Trainer:
    """Trains clients on one device, in scratch tensors that hold a client, or a stack of them.

    Args:
        layout: the part table.
        method: what to train.
        data: whose batches.
        device: where.
        stop: asked between steps; True ends the run.
    """

    def __init__(
        self, part_table: PartTable, method: Method, data: FederatedData, device: torch.device, stop: Callable[[], bool]
    ) -> None:
        self.part_table = part_table
        self.method = method
        self.data = data
        self.device = device
        self.stop = stop
        self.client = part_table.bindable_client(device)
        self.seed_names = seed_names(self.client)

    def trained_keys(self, phase: Phase, batch: int | None = None) -> list[str]:
        """Parameters that a phase steps, in the batch of that number in its epoch, or ever."""
        parts = phase.rotation[batch % len(phase.rotation)] if batch is not None and phase.rotation else phase.train
        return [e.key for e in self.part_table.specs if e.parameter and e.part in parts]

    def source(self, phase: Phase) -> FederatedData:
        """Where the batches of a phase come from."""
        return self.data.whole() if phase.whole else self.data

    def recomputes_each_step(self, phase: Phase) -> bool:
        """Whether what a phase wants once must be computed in every step after all."""
        parts = {once.part for once in phase.cached.values()}
        batch_dependent = any(
            batch_norm_tensors(self.client.get_submodule(p)) and not self.part_table.parts[p].eval_mode for p in parts
        )
        noisy = any(name.split(".")[0] in parts for name in self.seed_names)
        return batch_dependent or noisy or self.data.augments

    def noise(self, step_settings: StepSettings, client: int, step: int) -> int:
        """The key of a step's noise."""
        return key(step_settings.seed, "noise", client, step_settings.round, step)


class SingleTrainer(Trainer):
    """One client at a time. Arguments as of :class:`Trainer`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.linear = LinearGradients(self.client)
        self.room: Tensors = {}

    def borrowed(self, phases: Sequence[Phase], step_settings: StepSettings) -> dict[str, bool]:
        """Names of tensors that are read where they are, and whether a step moves them to where the client trains."""
        if not all(only_steps(phase) and takes_factors(phase, step_settings.for_phase(phase)) for phase in phases):
            return {}
        trained = {part for phase in phases for part in phase.train}
        weights = set(self.linear.weights.values())
        moves = {e.key: e.part in trained for e in self.part_table.specs if e.parameter}
        return {name: moved for name, moved in moves.items() if name in weights or not moved}

    def train(
        self,
        client: int,
        tensors: Tensors,
        phases: Sequence[Phase],
        step_settings: StepSettings,
        room: Tensors | None = None,
    ) -> LocalReport:
        """Trains in place on ``tensors``, which are the client's and the optimizer's.

        Those that are :meth:`borrowed` need not be the client's if there is ``room`` for them, to which they move by
        their first step.
        """
        report = LocalReport(client)
        self.room = {} if room is None else room
        set_mode(self.client, self.part_table.parts, training=True)
        first_epoch = 0
        for phase in phases:
            bind(self.client, tensors, set(self.trained_keys(phase)))
            taken = self.phase(phase, tensors, first_epoch, step_settings, report)
            first_epoch += phase.epochs
            if report.problem and step_settings.stop_at_nan:
                break
            if phase.after:
                write(phase.after(tensors, taken), tensors)
        report.problem = report.problem or first_not_finite(tensors, report.steps)
        return report

    def phase(
        self, phase: Phase, tensors: Tensors, first_epoch: int, step_settings: StepSettings, report: LocalReport
    ) -> PhaseProgress:
        """One phase, epoch by epoch; says what was done in it."""
        before, loss = report.steps, math.nan

        def taken() -> PhaseProgress:
            last = torch.tensor(loss, dtype=torch.float64, device=self.device)
            return PhaseProgress(torch.tensor(report.steps - before, device=self.device), step_settings.lr, last)

        now, for_phase = self.recomputes_each_step(phase), step_settings.for_phase(phase)
        tables = {} if now else self.once_tables(phase, report.client)
        turns = [self.trained_keys(phase, turn) for turn in range(max(len(phase.rotation), 1))]
        trained = [{name: self.client.get_parameter(name) for name in turn} for turn in turns]
        for epoch in range(first_epoch, first_epoch + phase.epochs):
            for number, (x, y, place) in enumerate(self.batches(phase, report, step_settings.round, epoch)):
                noise = self.noise(step_settings, report.client, report.steps)
                if self.seed_names:
                    seed_dropout(self.client, noise)
                once = {name: table[place] for name, table in tables.items()}
                batch = Batch(x, y, torch.tensor(noise, device=self.device), once)
                if now:
                    batch.cached = self.once(phase, x)
                parameters = trained[number % len(trained)]
                loss, recorded = self.step(phase, batch, parameters, tensors, for_phase)
                report.add(len(y), loss, recorded)
                if report.problem and step_settings.stop_at_nan:
                    return taken()
                if phase.after_batch:
                    write(phase.after_batch(tensors, taken()), tensors)
            if phase.after_epoch:
                write(phase.after_epoch(tensors, taken()), tensors)
        return taken()

    def step(
        self,
        phase: Phase,
        batch: Batch,
        parameters: Mapping[str, Tensor],
        tensors: Tensors,
        step_settings: StepSettings,
    ) -> tuple[float, dict[str, float]]:
        """The steps on one batch; gives loss and recorded quantities of the last, and frees everything else."""
        factors: dict[str, GradientFactors] = {}
        for _ in range(phase.repeats):
            if phase.custom_gradient:
                loss, recorded, gradients = self.directed(phase, batch, parameters, step_settings.lr)
            else:
                loss, recorded = self.linear.record(phase.loss, self.client, batch)
                gradients, factors = self.linear.gradients(loss, parameters)
                if not takes_factors(phase, step_settings):
                    gradients.update({name: self.linear.product(name, factors.pop(name)) for name in list(factors)})
            moving = [name for name in self.room if name in parameters]
            update(phase, gradients, tensors, batch.seed, step_settings, identity, factors, self.room)
            for name in moving:
                parameters[name].data = tensors[name]
            del gradients  # or they would still be there when the next ones are computed
        return loss.item(), {name: value.item() for name, value in recorded.items()}

    def directed(
        self, phase: Phase, batch: Batch, parameters: Mapping[str, Tensor], lr: float
    ) -> tuple[Tensor, Tensors, Tensors]:
        """Loss and recorded quantities of the last slope that the phase's direction asks for, and the direction."""
        assert phase.custom_gradient is not None
        last: list[tuple[Tensor, Tensors]] = []

        def gradient_at(values: Tensors, samples: slice = slice(None), reported: bool = True) -> Tensors:
            there = {name: value.detach().requires_grad_() for name, value in values.items()}
            once = {name: value[samples] for name, value in batch.cached.items()}
            part = Batch(batch.x[samples], batch.y[samples], batch.seed, once)
            loss, recorded = evaluate_at(self.client, phase.loss, there, part)
            if reported:
                last[:] = [(loss.detach(), recorded)]
            return gradients_of(loss, list(there), list(there.values()))

        values = {name: parameter.detach() for name, parameter in parameters.items()}
        gradients = phase.custom_gradient(gradient_at, values, len(batch.y), lr)
        return (*last[0], gradients)

    def batches(
        self, phase: Phase, report: LocalReport, round: int, epoch: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Batches of an epoch; measures the time they take and asks whether to stop."""
        data = self.source(phase)
        limit = phase.limit(data.steps(report.client)) if phase.limit else None
        batches = islice(data.batches(report.client, round, epoch), limit)
        while True:
            if self.stop():
                raise Interrupted
            begin = perf_counter()
            batch = next(batches, None)
            report.data_seconds += perf_counter() - begin
            if batch is None:
                return
            yield batch

    def once(self, phase: Phase, x: Tensor) -> Tensors:
        """What a phase wants once, for one batch."""
        with torch.no_grad():
            return {name: once.compute(self.client, x) for name, once in phase.cached.items()}

    def once_tables(self, phase: Phase, client: int) -> Tensors:
        """What a phase wants once, for all training samples of the client, in their own order."""
        if not phase.cached:
            return {}
        rows = [self.once(phase, x) for x, _ in self.data.evaluation("train", client)]
        return {name: torch.cat([row[name] for row in rows]) for name in phase.cached}


def gradients_of(loss: Tensor, names: Sequence[str], parameters: Sequence[Tensor]) -> Tensors:
    """Gradients by name, of those parameters that the loss depends on."""
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: gradient for name, gradient in zip(names, found, strict=True) if gradient is not None}


def first_not_finite(tensors: Tensors, step: int) -> str | None:
    """Names the first tensor with a NaN or an infinite value after ``step``."""
    for name, tensor in tensors.items():
        # A finite sum has finite terms, and takes one pass over memory; another one proves nothing.
        if not tensor.is_floating_point() or math.isfinite(tensor.sum().item()):
            continue
        if not bool(torch.isfinite(tensor).all()):
            return f"{name} holds values that are not finite after step {step}"
    return None
