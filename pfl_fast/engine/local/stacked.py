"""Local training of a stack of clients at once: one forward and backward per step for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from time import perf_counter

import torch
from torch import Tensor

from pfl_fast.data.federated import Group
from pfl_fast.engine.local.modules import bind, set_mode, stacked
from pfl_fast.engine.local.optimizer import StepSettings, update
from pfl_fast.engine.local.progress import StackProgress
from pfl_fast.engine.local.single import Interrupted, LocalReport, Trainer, first_not_finite, gradients_of
from pfl_fast.methods.base import Batch, Client, Loss, Phase, Tensors

Outcome = tuple[Tensor, Tensors]  # losses [C] and recorded quantities [C] by name


class StackedTrainer(Trainer):
    """A stack of clients at once: every tensor is ``[C, *shape]``, every step one forward and backward for all.

    Clients come sorted as the data sorts them, so that those that still have a full batch are a prefix of the stack, a
    view. Smaller last batches are taken by clients of equal size together: nothing is padded, so that BatchNorm and MMD
    see the samples they should.
    """

    def train(
        self, clients: list[int], tensors: Tensors, phases: Sequence[Phase], step_settings: StepSettings
    ) -> list[LocalReport]:
        """Trains in place on ``tensors``, row by row the clients'."""
        set_mode(self.client, self.part_table.parts, training=True)
        tally = StackProgress(clients, self.device)
        first_epoch = 0
        for phase in phases:
            tally.begin_phase()
            self.phase(phase, tensors, first_epoch, step_settings, tally)
            first_epoch += phase.epochs
            tally.write(phase.after, tensors, step_settings.lr)
        reports = tally.reports()
        for row, report in enumerate(reports):
            own = {name: t[row] for name, t in tensors.items()}
            report.problem = report.problem or first_not_finite(own, report.steps)
        return reports

    def phase(
        self, phase: Phase, tensors: Tensors, first_epoch: int, step_settings: StepSettings, tally: StackProgress
    ) -> None:
        """One phase, epoch by epoch."""
        now, for_phase = self.recomputes_each_step(phase), step_settings.for_phase(phase)
        run = stacked(self.client, with_once(phase) if now else phase.loss, self.seed_names)
        tables = {} if now else self.once_tables(phase, tally.clients, tensors)
        asks = phase.after_batch or phase.after_epoch or phase.after
        for epoch in range(first_epoch, first_epoch + phase.epochs):
            for number, group in self.groups(phase, tally, step_settings.round, epoch):
                rows, names = group.rows, self.trained_keys(phase, number)
                active = {name: t[rows].detach() for name, t in tensors.items()}
                seed = tally.seeds(rows, lambda client, taken: self.noise(step_settings, client, taken))
                once = {name: table.rows(rows, group.place) for name, table in tables.items()}
                outcome = self.steps(phase, run, Batch(group.x, group.y, seed, once), active, names, for_phase)
                tally.add(rows, group.y.shape[1], *outcome)
                if asks:
                    tally.note_last()
                tally.write(phase.after_batch, active, step_settings.lr, rows)
            tally.write(phase.after_epoch, tensors, step_settings.lr)

    def steps(
        self,
        phase: Phase,
        run: Callable[..., Outcome],
        batch: Batch,
        active: Tensors,
        names: list[str],
        step_settings: StepSettings,
    ) -> Outcome:
        """The steps on one batch of each client; losses and recorded quantities are those of the last."""
        model_specs = [e.key for e in self.part_table.model_specs]
        last: list[Outcome] = []

        def gradient_at(values: Tensors, samples: slice = slice(None), reported: bool = True) -> Tensors:
            parameters = {name: value.detach().requires_grad_() for name, value in values.items()}
            inputs = {name: parameters.get(name, active[name]) for name in model_specs}
            once = {name: value[:, samples] for name, value in batch.cached.items()}
            losses, recorded = run(inputs, batch.x[:, samples], batch.y[:, samples], batch.seed, once)
            if reported:
                last[:] = [(losses.detach(), recorded)]
            return gradients_of(losses.sum(), list(parameters), list(parameters.values()))

        for _ in range(phase.repeats):
            values = {name: active[name] for name in names}
            if phase.custom_gradient:
                gradients = phase.custom_gradient(gradient_at, values, batch.y.shape[1], step_settings.lr)
            else:
                gradients = gradient_at(values)
            update(phase, gradients, active, batch.seed, step_settings, torch.vmap)
            del gradients  # or they would still be there when the next ones are computed
        return last[0]

    def groups(self, phase: Phase, tally: StackProgress, round: int, epoch: int) -> Iterator[tuple[int, Group]]:
        """Groups of equal batches of an epoch and their number in it; measures time and asks whether to stop."""
        data = self.source(phase)
        counts = [data.steps(client) for client in tally.clients]
        limits = [phase.limit(count) if phase.limit else count for count in counts]
        steps = iter(data.stacked(tally.clients, round, epoch))
        for number in count():
            if self.stop():
                raise Interrupted
            # Clients with more batches come first, and so do those with a higher limit.
            left = sum(limit > number for limit in limits)
            begin = perf_counter()
            groups = next(steps, None) if left else None
            tally.data_seconds += perf_counter() - begin
            if groups is None:
                return
            yield from ((number, group.first(left - group.rows.start)) for group in groups if group.rows.start < left)

    def once_tables(self, phase: Phase, clients: list[int], tensors: Tensors) -> dict[str, RaggedTable]:
        """What a phase wants once, for all training samples of all clients."""
        rows: dict[str, list[Tensor]] = {name: [] for name in phase.cached}
        sizes = []
        for row, client in enumerate(clients if phase.cached else []):
            bind(self.client, {name: t[row] for name, t in tensors.items()}, set())
            sizes.append(int(self.data.train_sizes[client]))
            with torch.no_grad():
                for x, _ in self.data.evaluation("train", client):
                    for name, once in phase.cached.items():
                        rows[name].append(once.compute(self.client, x))
        return {name: RaggedTable(torch.cat(values), sizes) for name, values in rows.items()}


def with_once(phase: Phase) -> Loss:
    """The phase's loss, which computes by itself what should have been there."""

    def loss(client: Client, batch: Batch) -> tuple[Tensor, Tensors]:
        with torch.no_grad():
            batch.cached = {name: once.compute(client, batch.x) for name, once in phase.cached.items()}
        return phase.loss(client, batch)

    return loss


class RaggedTable:
    """Rows of several clients one below the other."""

    def __init__(self, values: Tensor, sizes: list[int]) -> None:
        self.values = values
        self.begin = torch.tensor([0, *sizes[:-1]], device=values.device).cumsum(0)

    def rows(self, clients: slice, place: Tensor) -> Tensor:
        """``[C, b, ...]``: for each client in ``clients`` the rows at its ``place`` ``[C, b]``."""
        return self.values[self.begin[clients, None] + place]
