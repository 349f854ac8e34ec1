"""Steps of local training, for one client or a stack of clients.

A :class:`Runner` executes them: :mod:`~pfl_fast.engine.local.single` for one client whose tensors are bound to modules,
:mod:`~pfl_fast.engine.local.stacked` for a stack of clients under ``torch.vmap``. Its :class:`PhaseRun` is one phase of
one unit, a :class:`Step` of it one batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.local.arithmetic import with_bf16_products
from pfl_fast.engine.local.linear_gradients import GradientFactors
from pfl_fast.engine.local.modules import bind
from pfl_fast.engine.local.optimizer import StepSettings
from pfl_fast.engine.local.program import StepProgram
from pfl_fast.engine.local.progress import SingleProgress, StackProgress
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.methods.base import Batch, Loss, Method, Phase, Tensors
from pfl_fast.models import batch_norm_tensors
from pfl_fast.nn import seed_names
from pfl_fast.randomness import key

Predict = Callable[[Any, Batch], Any]
WHOLE = slice(None)


@dataclass(eq=False)
class Step(ABC):
    """The updates on one batch of a client or a stack.

    Attributes:
        loss: loss of the last update, a scalar or ``[C]``.
        recorded: recorded quantities of the last update.
    """

    phase: Phase
    parameters: Mapping[str, Tensor]
    batch: Batch
    settings: StepSettings

    def run(self) -> None:
        """Computes gradients and updates the parameters, ``phase.repeats`` times."""
        self.loss: Tensor
        self.recorded: Tensors
        for _ in range(self.phase.repeats):
            factors: Mapping[str, GradientFactors] = {}
            if self.phase.custom_gradient:
                size = self.batch.y.shape[-1]
                gradients = self.phase.custom_gradient(self.gradient_at, self.values(), size, self.settings.lr)
            else:
                gradients, factors = self.gradients()
            self.update(gradients, factors)
            del gradients  # frees them before the next ones are computed

    def values(self) -> Tensors:
        """Returns the trained parameters, detached."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def gradients(self) -> tuple[Tensors, Mapping[str, GradientFactors]]:
        """Returns gradients at the current values, as tensors and as factors."""
        return self.gradient_at(self.values()), {}

    def gradient_at(self, values: Tensors, samples: slice = WHOLE, reported: bool = True) -> Tensors:
        """See :class:`pfl_fast.methods.phases.GradientAt`."""
        parameters = {name: value.detach().requires_grad_() for name, value in values.items()}
        loss, recorded = self.loss_at(parameters, samples)
        if reported:
            self.loss, self.recorded = loss.detach(), recorded
        found = torch.autograd.grad(loss, list(parameters.values()), self.ones_like(loss), allow_unused=True)
        return {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}

    def ones_like(self, loss: Tensor) -> Tensor | None:
        """Returns the gradient of the sum of losses; None stands for that of a scalar."""
        return None

    @abstractmethod
    def loss_at(self, parameters: Tensors, samples: slice) -> tuple[Tensor, Tensors]:
        """Returns loss and recorded quantities on ``samples`` of the batch, at given values of the parameters."""

    @abstractmethod
    def update(self, gradients: Tensors, factors: Mapping[str, GradientFactors]) -> None:
        """Updates the parameters in place."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Batches of an epoch, equally large ones of the clients in ``rows``.

    Attributes:
        first: number of the first batch in the epoch.
        rows: clients of the unit.
        x, y, position: ``[steps, ...]`` samples, labels and positions in the clients' lists.
        cached: ``[steps, ...]`` cached values by name.
    """

    first: int
    rows: slice
    x: Tensor
    y: Tensor
    position: Tensor
    cached: Tensors = field(default_factory=dict)

    @property
    def numbers(self) -> slice:
        """Numbers of the batches in the epoch."""
        return slice(self.first, self.first + len(self.y))

    def cut(self, begin: int, end: int) -> Chunk:
        """Returns the batches ``begin`` to ``end``."""
        cached = {name: value[begin:end] for name, value in self.cached.items()}
        fields = (self.x[begin:end], self.y[begin:end], self.position[begin:end])
        return Chunk(self.first + begin, self.rows, *fields, cached)


@dataclass(eq=False)
class PhaseRun(ABC):
    """One phase of the local training of a unit.

    Attributes:
        rotation: names of the parameters to train in each turn.
        tensors: tensors of the unit, trained in place.
        write_buffers: memory for tensors that are read in place.
    """

    runner: Runner
    phase: Phase
    loss: Loss
    rotation: list[list[str]]
    progress: SingleProgress | StackProgress
    tensors: Tensors
    write_buffers: Tensors

    @abstractmethod
    def chunks(self, round: int, epoch: int) -> Iterator[Chunk]:
        """Yields the batches of an epoch."""

    @abstractmethod
    def begin_epoch(self, settings: StepSettings, epoch: int) -> None:
        """Sends the noise seeds of all steps of an epoch to the device."""

    @abstractmethod
    def seeds(self, numbers: slice, rows: slice) -> Tensor:
        """Returns the noise seeds of some batches of the epoch, of the clients in ``rows``."""

    @abstractmethod
    def step(self, batch: Batch, rows: slice, turn: int, settings: StepSettings) -> Step:
        """Returns the step on a batch of the clients in ``rows``, in one turn of the rotation."""

    @abstractmethod
    def active(self, rows: slice) -> Tensors:
        """Returns the tensors of the clients in ``rows``, to be written to."""

    @abstractmethod
    def inputs(self, step: Step) -> list[tuple[str, Tensor]]:
        """Returns the tensors of a step by name; several objects may stand for one name."""

    @abstractmethod
    def begin_program(self, program: StepProgram, rows: slice) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the lists ``t`` and ``start`` of a program for the clients in ``rows``."""

    def first_batch(self, chunk: Chunk) -> Batch:
        """Returns the first batch of a chunk."""
        seed = self.seeds(chunk.numbers, chunk.rows)[0]
        return Batch(chunk.x[0], chunk.y[0], seed, {name: values[0] for name, values in chunk.cached.items()})

    def first_step(self, chunk: Chunk, turn: int, settings: StepSettings) -> Step:
        """Returns the step on the first batch of a chunk."""
        return self.step(self.first_batch(chunk), chunk.rows, turn, settings)

    def run_program(self, program: StepProgram, chunk: Chunk, stop_at_nan: bool) -> list[tuple[Tensor, Tensors]]:
        """Runs a program on the batches of a chunk; returns loss and recorded quantities of each step."""
        tensors, start = self.begin_program(program, chunk.rows)
        memory = enumerate(program.scratch)
        scratch = [self.runner.scratch(f"scratch {n}", like.shape, like.dtype) for n, like in memory]
        seeds = self.seeds(chunk.numbers, chunk.rows)
        batches = (chunk.x, chunk.y, seeds, list(chunk.cached.values()))
        found = program.run(tensors, start, scratch, *batches, stop_at_nan and self.progress.reads_every_loss)
        return [(loss, dict(zip(program.recorded, recorded, strict=True))) for loss, *recorded in found]


class Runner(ABC):
    """Executes steps and predictions for a unit of clients on one device.

    Attributes:
        progress_class: counts steps and losses of a unit.
        phase_class: trains a unit in one phase.
    """

    progress_class: ClassVar[type[SingleProgress | StackProgress]]
    phase_class: ClassVar[type[PhaseRun]]

    def __init__(self, part_table: PartTable, method: Method, data: FederatedData, device: torch.device) -> None:
        self.part_table = part_table
        self.method = method
        self.data = data
        self.device = device
        self.client = part_table.bindable_client(device)
        self.seed_names = seed_names(self.client)
        self._scratch: Tensors = {}

    @abstractmethod
    def load(
        self, views: Sequence[Tensors], phases: Sequence[Phase], settings: StepSettings
    ) -> tuple[Tensors, Tensors]:
        """Returns the tensors of a unit, ready for training, and write buffers for those read in place.

        The clients' ``views`` stay unchanged.
        """

    @abstractmethod
    def gather(self, views: Sequence[Tensors]) -> Tensors:
        """Returns the clients' tensors as one unit, to be read; copied only if necessary."""

    @abstractmethod
    def copy(self, views: Sequence[Tensors]) -> Tensors:
        """Returns new copies of the clients' tensors."""

    @abstractmethod
    def row(self, tensors: Tensors, row: int) -> Tensors:
        """Returns the tensors of one client of the unit."""

    @abstractmethod
    def as_stack(self, tensors: Tensors) -> Tensors:
        """Returns the tensors of the unit as ``[C, *shape]``, not copied."""

    @abstractmethod
    def call(self, hook: Callable[[Tensors], Tensors], tensors: Tensors) -> Tensors:
        """Returns ``hook(tensors)`` of every client of the unit, as ``[C, *shape]``."""

    @abstractmethod
    def sums(self, tensor: Tensor) -> Tensor:
        """Returns the sum of each client's tensor, where ``tensor`` is one of the unit."""

    @abstractmethod
    def logits(
        self, predict: Predict, clients: Sequence[int], tensors: Tensors, split: str, seeds: Callable[[int, int], int]
    ) -> list[tuple[Tensor, Tensor]]:
        """Returns logits and labels of each client on its samples of ``split``.

        ``seeds`` maps client and number of the batch to the seed of the noise in predictions.
        """

    def trained_names(self, phase: Phase, turn: int | None = None) -> list[str]:
        """Returns the parameters that a phase trains, in one turn of its rotation or in any."""
        parts = phase.rotation[turn % len(phase.rotation)] if turn is not None and phase.rotation else phase.train
        return [spec.key for spec in self.part_table.specs if spec.parameter and spec.part in parts]

    def source(self, phase: Phase) -> FederatedData:
        """Returns the data whose batches a phase uses."""
        data = self.data.pooled() if phase.pooled else self.data
        return data.whole() if phase.whole else data

    def steps(self, phase: Phase, client: int) -> int:
        """Returns the number of batches in an epoch of a client, within the phase's limit."""
        count = self.source(phase).steps(client)
        return min(count, phase.limit(count)) if phase.limit else count

    def recomputes_each_step(self, phase: Phase) -> bool:
        """Returns whether cached values would be wrong (BatchNorm in training mode, dropout, augmentation)."""
        parts = {cache.part for cache in phase.cached.values()}
        batch_dependent = any(
            batch_norm_tensors(self.client.get_submodule(p)) and not self.part_table.parts[p].eval_mode for p in parts
        )
        noisy = any(name.split(".")[0] in parts for name in self.seed_names)
        return batch_dependent or noisy or self.data.augments

    def cached_values(self, phase: Phase, tensors: Tensors, clients: list[int], bf16: bool) -> Tensors:
        """Returns the cached values of all training samples: the clients' lists, one after the other."""
        compute = {name: with_bf16_products(cache.compute, bf16) for name, cache in phase.cached.items()}
        values: dict[str, list[Tensor]] = {name: [] for name in compute}
        for row, client in enumerate(clients if compute else ()):
            bind(self.client, self.row(tensors, row), set())
            with torch.no_grad():
                for x, _ in self.data.evaluation("train", client):
                    for name in compute:
                        values[name].append(compute[name](self.client, x))
        return {name: torch.cat(parts) for name, parts in values.items()}

    def noise(self, settings: StepSettings, client: int, step: int) -> int:
        """Returns the noise seed of a client's step."""
        return key(settings.seed, "noise", client, settings.round, step)

    def scratch(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Returns uninitialised memory that later calls with the same name reuse."""
        if name not in self._scratch or self._scratch[name].shape != tuple(shape):
            self._scratch[name] = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        return self._scratch[name]

    def free_scratch(self) -> None:
        """Frees the memory of :meth:`scratch`."""
        self._scratch.clear()
