"""Local training and tests of a stack of clients: one forward and backward per step for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.local.arithmetic import with_bf16_products
from pfl_fast.engine.local.in_place import avoid_in_place
from pfl_fast.engine.local.linear_gradients import GradientFactors
from pfl_fast.engine.local.modules import stacked
from pfl_fast.engine.local.optimizer import StepSettings, update
from pfl_fast.engine.local.program import StepProgram
from pfl_fast.engine.local.progress import StackProgress
from pfl_fast.engine.local.runner import Chunk, PhaseRun, Predict, Runner, Step
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import Batch, Client, Method, Phase, Tensors
from pfl_fast.nn import BatchCounts, counting, fold_batch_norm
from pfl_fast.ops import dispatch
from pfl_fast.transfer import to_device


@dataclass(eq=False)
class StackedStep(Step):
    """The updates of the active clients of a stack on one batch each; all tensors are ``[C, ...]``."""

    training: StackedPhase
    active: Tensors

    def loss_at(self, parameters: Tensors, samples: slice) -> tuple[Tensor, Tensors]:
        inputs = {name: parameters.get(name, self.active[name]) for name in self.training.runner.model_names}
        cached = {name: value[:, samples] for name, value in self.batch.cached.items()}
        x, y = self.batch.x[:, samples], self.batch.y[:, samples]
        losses: tuple[Tensor, Tensors] = self.training.stacked_loss(inputs, x, y, self.batch.seed, cached)
        return losses

    def ones_like(self, loss: Tensor) -> Tensor:
        return self.training.ones_like(loss)

    def update(self, gradients: Tensors, factors: Mapping[str, GradientFactors]) -> None:
        update(self.phase, gradients, self.active, self.batch.seed, self.settings, torch.vmap)


@dataclass(eq=False)
class StackedPhase(PhaseRun):
    """One phase of a stack of clients."""

    runner: StackedRunner
    progress: StackProgress

    def __post_init__(self) -> None:
        loss = stacked(self.runner.client, self.loss, self.runner.seed_names)
        self.stacked_loss = counting(loss, self.runner.batch_counts)
        self._steps = [self.runner.steps(self.phase, client) for client in self.progress.clients]
        self._ones: Tensor | None = None

    def chunks(self, round: int, epoch: int) -> Iterator[Chunk]:
        steps = iter(self.runner.source(self.phase).stacked_batches(self.progress.clients, round, epoch))
        for number in count():
            # Clients with more batches come first, and so do those with a higher limit.
            left = sum(own > number for own in self._steps)
            groups = next(steps, None) if left else None
            if groups is None:
                return
            for group in groups:
                if group.rows.start < left:
                    rows, x, y, position = group.first(left - group.rows.start)
                    yield Chunk(number, rows, x[None], y[None], position[None])

    def begin_epoch(self, settings: StepSettings, epoch: int) -> None:
        numbered = self.phase.first_epoch is not None
        done = [epoch * steps for steps in self._steps] if numbered else self.progress.steps
        clients = list(zip(self.progress.clients, done, self._steps, strict=True))
        seeds = [
            [
                self.runner.noise(settings, client, done + number) if number < steps else 0
                for client, done, steps in clients
            ]
            for number in range(max(self._steps))
        ]
        self._seeds = to_device(torch.tensor(seeds), self.runner.device)

    def seeds(self, numbers: slice, rows: slice) -> Tensor:
        return self._seeds[numbers, rows]

    def ones_like(self, loss: Tensor) -> Tensor:
        """Returns ones of the shape of a loss ``[C]``, made once."""
        if self._ones is None:
            self._ones = torch.ones(len(self.progress.clients), dtype=loss.dtype, device=loss.device)
        return self._ones[: len(loss)]

    def step(self, batch: Batch, rows: slice, turn: int, settings: StepSettings) -> Step:
        active = self.active(rows)
        parameters = {name: active[name] for name in self.rotation[turn]}
        return StackedStep(self.phase, parameters, batch, settings, self, active)

    def active(self, rows: slice) -> Tensors:
        return {name: tensor[rows].detach() for name, tensor in self.tensors.items()}

    def inputs(self, step: StackedStep) -> list[tuple[str, Tensor]]:  # type: ignore[override]
        return list(step.active.items())

    def begin_program(self, program: StepProgram, rows: slice) -> tuple[list[Tensor], list[Tensor]]:
        active = self.active(rows)
        tensors = [active[name] for name in program.names]
        return tensors, tensors


class StackedRunner(Runner):
    """Runs a stack of clients at once: every tensor is ``[C, *shape]``.

    Clients are sorted by :meth:`FederatedData.stack_order`, so the clients that still have a full batch are a prefix of
    the stack, a view. Smaller last batches are grouped by size. Nothing is padded, so BatchNorm and MMD see exactly the
    client's samples.
    """

    progress_class = StackProgress
    phase_class = StackedPhase

    def __init__(self, part_table: PartTable, method: Method, data: FederatedData, device: torch.device) -> None:
        super().__init__(part_table, method, data, device)
        self.batch_counts = BatchCounts()
        fold_batch_norm(self.client, self.batch_counts)
        avoid_in_place(self.client, part_table, method, data)
        self.model_names = [spec.key for spec in part_table.model_specs]
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
            tensors[spec.key] = self._stack([view[spec.key] for view in views], memory)
        return tensors, {}

    def gather(self, views: Sequence[Tensors]) -> Tensors:
        return self._stacked(views, self.model_names)

    def copy(self, views: Sequence[Tensors]) -> Tensors:
        return self._stacked(views, [spec.key for spec in self.part_table.specs])

    def _stacked(self, views: Sequence[Tensors], names: Sequence[str]) -> Tensors:
        found = {}
        for name in names:
            values = [view[name] for view in views]
            memory = torch.empty((len(values), *values[0].shape), dtype=values[0].dtype, device=self.device)
            found[name] = self._stack(values, memory)
        return found

    def _stack(self, values: Sequence[Tensor], memory: Tensor) -> Tensor:
        """Copies one value per client to ``memory [C, *shape]``: a value that all share once, others all together."""
        first, devices = values[0], {value.device for value in values}
        if all(value is first for value in values):
            constant = first.dim() and not any(first.stride())  # such as zeros of momentum
            memory.copy_(to_device(first[(0,) * first.dim()] if constant else first, self.device))
        elif len(devices) == 1 and all(value.dtype == memory.dtype for value in values):
            if self.device in devices:
                torch.stack(list(values), out=memory)
            else:
                memory.copy_(to_device(torch.stack(list(values)), self.device))
        else:
            for row, value in enumerate(values):
                memory[row].copy_(value)
        return memory

    def _index(self, rows: list[int]) -> slice | Tensor:
        """Returns an index of increasing rows; adjacent ones are a view."""
        begin, end = rows[0], rows[-1] + 1
        return slice(begin, end) if end - begin == len(rows) else to_device(rows, self.device)

    def row(self, tensors: Tensors, row: int) -> Tensors:
        return {name: tensor[row] for name, tensor in tensors.items()}

    def as_stack(self, tensors: Tensors) -> Tensors:
        return tensors

    def call(self, hook: Callable[[Tensors], Tensors], tensors: Tensors) -> Tensors:
        values: Tensors = torch.vmap(hook)(tensors)
        return values

    def sums(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(-1).flatten(1).sum(1)

    def cached_values(self, phase: Phase, tensors: Tensors, clients: list[int], bf16: bool) -> Tensors:
        """Computes them for a stack on GPUs, with no more samples at a time than a training step has."""
        names = {spec.key for spec in self.part_table.specs if spec.part in {c.part for c in phase.cached.values()}}
        if not names or dispatch.device_type(tensors[min(names)]) != "cuda":
            return super().cached_values(phase, tensors, clients, bf16)

        def compute(client: Client, batch: Batch) -> Tensors:
            return {name: cache.compute(client, batch.x) for name, cache in phase.cached.items()}

        run = stacked(self.client, with_bf16_products(compute, bf16), [])
        values: dict[str, list[list[Tensor]]] = {name: [[] for _ in clients] for name in phase.cached}
        with torch.no_grad():
            samples = self.data.batch_size * len(clients)
            for _, rows, x, y in self.data.stacked_evaluation("train", clients, samples):
                seed = torch.zeros(len(rows), dtype=torch.int64, device=self.device)
                index = self._index(rows)
                outputs = run({name: tensors[name][index] for name in names}, x, y, seed, {})
                for name, output in outputs.items():
                    for row, own in zip(rows, output, strict=True):
                        values[name][row].append(own)
        return {name: torch.cat([part for own in lists for part in own]) for name, lists in values.items()}

    def logits(
        self, predict: Predict, clients: Sequence[int], tensors: Tensors, split: str, seeds: Callable[[int, int], int]
    ) -> list[tuple[Tensor, Tensor]]:
        self.client.eval()
        run = stacked(self.client, predict, self.seed_names)
        logits: list[list[Tensor]] = [[] for _ in clients]
        labels: list[list[Tensor]] = [[] for _ in clients]
        with torch.no_grad():
            for number, rows, x, y in self.data.stacked_evaluation(split, clients):
                seed = to_device([seeds(clients[row], number) for row in rows], self.device)
                index = self._index(rows)
                outputs = run({name: tensors[name][index] for name in self.model_names}, x, y, seed, {})
                for row, output, label in zip(rows, outputs, y, strict=True):
                    logits[row].append(output)
                    labels[row].append(label)
        empty = [torch.empty(0, dtype=torch.int64, device=self.device)]
        return [
            (torch.cat(own) if own else torch.empty(0, 0), torch.cat(mine or empty))
            for own, mine in zip(logits, labels, strict=True)
        ]
