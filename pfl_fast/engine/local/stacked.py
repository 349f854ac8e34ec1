"""Local training and tests of a stack of clients: one forward and backward per step for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from pfl_fast.data.federated import FederatedData, StackedBatch
from pfl_fast.engine.local.linear_gradients import GradientFactors
from pfl_fast.engine.local.modules import bind, stacked
from pfl_fast.engine.local.optimizer import StepSettings, update
from pfl_fast.engine.local.progress import StackProgress
from pfl_fast.engine.local.trainer import CachedValues, Predict, Runner, Step, gradients_of
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import Batch, Loss, Method, Phase, Tensors

WHOLE = slice(None)


class StackedStep(Step):
    """The updates of the active clients of a stack on one batch each; all tensors are ``[C, ...]``."""

    def __init__(
        self,
        run: Callable[..., Any],
        active: Tensors,
        names: list[str],
        model_names: list[str],
        phase: Phase,
        batch: Batch,
        settings: StepSettings,
    ) -> None:
        super().__init__(phase, batch, settings)
        self.run_stack = run
        self.active = active
        self.names = names
        self.model_names = model_names

    def values(self) -> Tensors:
        return {name: self.active[name] for name in self.names}

    def gradients(self) -> tuple[Tensors, Mapping[str, GradientFactors]]:
        return self.gradient_at(self.values()), {}

    def gradient_at(self, values: Tensors, samples: slice = WHOLE, reported: bool = True) -> Tensors:
        parameters = {name: value.detach().requires_grad_() for name, value in values.items()}
        inputs = {name: parameters.get(name, self.active[name]) for name in self.model_names}
        cached = {name: value[:, samples] for name, value in self.batch.cached.items()}
        x, y = self.batch.x[:, samples], self.batch.y[:, samples]
        losses, recorded = self.run_stack(inputs, x, y, self.batch.seed, cached)
        if reported:
            self.loss, self.recorded = losses.detach(), recorded
        return gradients_of(losses.sum(), parameters)

    def update(self, gradients: Tensors, factors: Mapping[str, GradientFactors]) -> None:
        update(self.phase, gradients, self.active, self.batch.seed, self.settings, torch.vmap)


class StackedRunner(Runner):
    """Runs a stack of clients at once: every tensor is ``[C, *shape]``.

    Clients are sorted by :meth:`FederatedData.stack_order`, so the clients that still have a full batch are a prefix of
    the stack, a view. Smaller last batches are grouped by size. Nothing is padded, so BatchNorm and MMD see exactly the
    client's samples.
    """

    progress: StackProgress

    def __init__(self, part_table: PartTable, method: Method, data: FederatedData, device: torch.device) -> None:
        super().__init__(part_table, method, data, device)
        self._model_names = [spec.key for spec in part_table.model_specs]
        for name, module in self.client.named_modules():
            if isinstance(module, _BatchNorm) and module.track_running_stats and module.momentum is None:
                raise ConfigError(
                    f"executor: {name} has momentum=None, which cannot run in a stack; use threads, or set a momentum"
                )

    def load(
        self, views: Sequence[Tensors], phases: Sequence[Phase], settings: StepSettings
    ) -> tuple[Tensors, Tensors]:
        tensors = {}
        for spec in self.part_table.specs:
            memory = self.scratch(spec.key, (len(views), *spec.value.shape), spec.value.dtype)
            for row, view in enumerate(views):
                memory[row].copy_(view[spec.key])
            tensors[spec.key] = memory
        return tensors, {}

    def gather(self, views: Sequence[Tensors]) -> Tensors:
        return self._stacked(views, self._model_names)

    def copy(self, views: Sequence[Tensors]) -> Tensors:
        return self._stacked(views, [spec.key for spec in self.part_table.specs])

    def _stacked(self, views: Sequence[Tensors], names: Sequence[str]) -> Tensors:
        return {name: torch.stack([view[name].to(self.device) for view in views]) for name in names}

    def row(self, tensors: Tensors, row: int) -> Tensors:
        return {name: tensor[row] for name, tensor in tensors.items()}

    def begin(self, clients: list[int], tensors: Tensors, write_buffers: Tensors) -> None:
        self.progress = StackProgress(clients, self.device)
        self._tensors = tensors

    def end(self) -> None:
        self._tensors = {}

    def begin_phase(self, phase: Phase, loss: Loss, rotation: list[list[str]]) -> None:
        self._phase, self._rotation = phase, rotation
        self._run = stacked(self.client, loss, self.seed_names)

    def bind_client(self, row: int) -> None:
        bind(self.client, self.row(self._tensors, row), set())

    def batches(self, phase: Phase, round: int, epoch: int) -> Iterator[tuple[int, StackedBatch]]:
        data, clients = self.source(phase), self.progress.clients
        counts = [data.steps(client) for client in clients]
        limits = [phase.limit(count) if phase.limit else count for count in counts]
        steps = iter(data.stacked(clients, round, epoch))
        for number in count():
            # Clients with more batches come first, and so do those with a higher limit.
            left = sum(limit > number for limit in limits)
            groups = next(steps, None) if left else None
            if groups is None:
                return
            yield from ((number, group.first(left - group.rows.start)) for group in groups if group.rows.start < left)

    def seed(self, rows: slice, settings: StepSettings) -> Tensor:
        own = zip(self.progress.clients[rows], self.progress.steps[rows], strict=True)
        return torch.tensor([self.noise(settings, client, step) for client, step in own], device=self.device)

    def cached(self, table: CachedValues, rows: slice, position: Tensor) -> Tensor:
        return table.values[table.begin[rows, None] + position]

    def step(self, batch: Batch, rows: slice, turn: int, settings: StepSettings) -> Step:
        names = self._rotation[turn]
        return StackedStep(self._run, self.active(rows), names, self._model_names, self._phase, batch, settings)

    def active(self, rows: slice) -> Tensors:
        return {name: tensor[rows].detach() for name, tensor in self._tensors.items()}

    def logits(
        self, predict: Predict, clients: Sequence[int], tensors: Tensors, split: str, seeds: Callable[[int, int], int]
    ) -> list[tuple[Tensor, Tensor]]:
        self.client.eval()
        run = stacked(self.client, predict, self.seed_names)
        logits: list[list[Tensor]] = [[] for _ in clients]
        labels: list[list[Tensor]] = [[] for _ in clients]
        with torch.no_grad():
            for number, rows, x, y in self.data.stacked_evaluation(split, clients):
                seed = torch.tensor([seeds(clients[row], number) for row in rows], device=self.device)
                index = WHOLE if len(rows) == len(clients) else torch.tensor(rows, device=self.device)
                outputs = run({name: tensors[name][index] for name in self._model_names}, x, y, seed, {})
                for row, output, label in zip(rows, outputs, y, strict=True):
                    logits[row].append(output)
                    labels[row].append(label)
        empty = [torch.empty(0, dtype=torch.int64, device=self.device)]
        return [
            (torch.cat(own) if own else torch.empty(0, 0), torch.cat(mine or empty))
            for own, mine in zip(logits, labels, strict=True)
        ]
