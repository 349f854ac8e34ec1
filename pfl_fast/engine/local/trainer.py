"""Local training: phases, epochs, steps, cached values and hooks, for one client or a stack of clients.

:class:`Trainer` is the loop. A :class:`Runner` executes it: :mod:`~pfl_fast.engine.local.single` for one client whose
tensors are bound to modules, :mod:`~pfl_fast.engine.local.stacked` for a stack of clients under ``torch.vmap``. Its
:class:`PhaseRun` is one phase of one unit, a :class:`Step` of it one batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.client_results import LocalReport
from pfl_fast.engine.local.arithmetic import with_bf16_products
from pfl_fast.engine.local.capture import Programs, RecordedStep
from pfl_fast.engine.local.linear_gradients import GradientFactors
from pfl_fast.engine.local.modules import bind, set_mode
from pfl_fast.engine.local.optimizer import StepSettings, write
from pfl_fast.engine.local.program import StepProgram
from pfl_fast.engine.local.progress import Hook, SingleProgress, StackProgress
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.methods.base import Batch, Client, Loss, Method, Phase, Tensors
from pfl_fast.models import batch_norm_tensors
from pfl_fast.nn import seed_names
from pfl_fast.randomness import key
from pfl_fast.transfer import read

Predict = Callable[[Any, Batch], Any]
WHOLE = slice(None)


class Interrupted(Exception):  # noqa: N818
    """The run was asked to stop; raised between two steps.

    Attributes:
        signal: number of the signal, if a signal asked.
    """

    signal: int | None = None


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


class Trainer:
    """Trains units of clients.

    Args:
        runner: executes the steps.
        stop: asked between chunks of steps; True raises :class:`Interrupted`.
        programs: programs of recorded steps; None runs all steps eagerly.
    """

    def __init__(self, runner: Runner, stop: Callable[[], bool], programs: Programs | None = None) -> None:
        self.runner = runner
        self.stop = stop
        self.programs = programs or Programs(enabled=False)
        self._data_seconds = 0.0

    def train(
        self,
        clients: list[int],
        tensors: Tensors,
        phases: Sequence[Phase],
        settings: StepSettings,
        write_buffers: Tensors | None = None,
    ) -> list[LocalReport]:
        """Trains ``tensors`` in place and returns the clients' reports; reads all their values at once.

        Tensors read in place may belong to the server; their first update is written to ``write_buffers``.
        """
        progress = self.run_phases(clients, tensors, phases, settings, write_buffers)
        names = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
        # A finite sum has finite terms and needs one pass over memory; a sum that is not finite may be an overflow.
        pending, sums = progress.pending(), [self.runner.sums(tensors[name]) for name in names]
        values = read([*pending, *sums])
        reports = progress.reports(self._data_seconds, values[: len(pending)])
        totals = dict(zip(names, values[len(pending) :], strict=True))
        for row, report in enumerate(reports):
            suspects = [name for name, total in totals.items() if not isfinite(total[row])]
            report.problem = report.problem or first_not_finite(self.runner.row(tensors, row), suspects, report.steps)
        return reports

    def run_phases(
        self,
        clients: list[int],
        tensors: Tensors,
        phases: Sequence[Phase],
        settings: StepSettings,
        write_buffers: Tensors | None = None,
    ) -> SingleProgress | StackProgress:
        """Trains ``tensors`` in place, see :meth:`train`; returns the progress."""
        runner, progress = self.runner, self.runner.progress_class(clients, self.runner.device)
        set_mode(runner.client, runner.part_table.parts, training=True)
        self._data_seconds, first_epoch = 0.0, 0
        for phase in phases:
            recompute = bool(phase.cached) and runner.recomputes_each_step(phase)
            loss = with_bf16_products(with_cached(phase) if recompute else phase.loss, settings.bf16)
            rotation = [runner.trained_names(phase, turn) for turn in range(max(len(phase.rotation), 1))]
            tables = {} if recompute else runner.cached_values(phase, tensors, clients, settings.bf16)
            progress.begin_phase(phase)
            run = runner.phase_class(runner, phase, loss, rotation, progress, tensors, write_buffers or {})
            self._train_phase(run, tables, first_epoch if phase.first_epoch is None else phase.first_epoch, settings)
            first_epoch += phase.epochs
            if progress.failed and settings.stop_at_nan:
                break
            self._run_hook(run, phase.after, settings)
        return progress

    def _train_phase(self, run: PhaseRun, tables: Tensors, first_epoch: int, settings: StepSettings) -> None:
        for epoch in range(first_epoch, first_epoch + run.phase.epochs):
            run.begin_epoch(settings, epoch)
            for chunk in self._chunks(run, settings.round, epoch):
                cached = {name: table[chunk.position] for name, table in tables.items()}
                if not self._train_chunk(run, replace(chunk, cached=cached), settings):
                    return
            self._run_hook(run, run.phase.after_epoch, settings)

    def _train_chunk(self, run: PhaseRun, chunk: Chunk, settings: StepSettings) -> bool:
        """Runs the steps of a chunk; returns False if a loss was not finite and training is to stop."""
        progress, turns, done = run.progress, len(run.rotation), 0
        own = settings.for_phase(run.phase)
        one_by_one = bool(run.phase.after_batch) or turns > 1
        while done < len(chunk.y):
            turn = (chunk.first + done) % turns
            shape = (turn, tuple(chunk.x.shape[1:]), chunk.y.shape[1:], len(chunk.cached), type(self.runner).__name__)
            key = self.programs.key(run.phase, own, *shape)
            program = self.programs.get(key)
            part = chunk.cut(done, done + (1 if one_by_one or not program else program.most_steps))
            if program:
                results = run.run_program(program, part, settings.stop_at_nan)
            else:
                results = [self._eager_step(run, part, turn, own, key)]
            for loss, recorded in results:
                progress.add(chunk.rows, chunk.y.shape[-1], loss, recorded)
            if progress.failed and settings.stop_at_nan:
                return False
            self._run_hook(run, run.phase.after_batch, settings, chunk.rows)
            done += len(results)
        return True

    def _eager_step(
        self, run: PhaseRun, chunk: Chunk, turn: int, settings: StepSettings, key: tuple[Any, ...]
    ) -> tuple[Tensor, Tensors]:
        """Runs the step of a chunk of one batch, and records it if it is the first of its key."""
        seed = run.seeds(chunk.numbers, chunk.rows)[0]
        batch = Batch(chunk.x[0], chunk.y[0], seed, {name: values[0] for name, values in chunk.cached.items()})
        step = run.step(batch, chunk.rows, turn, settings)
        if self.programs.claims(key):
            outputs = lambda: (step.loss, step.recorded)  # noqa: E731
            self.programs.record(key, RecordedStep(step.run, batch, run.active(chunk.rows), run.inputs(step), outputs))
        else:
            step.run()
        return step.loss, step.recorded

    def _run_hook(self, run: PhaseRun, hook: Hook | None, settings: StepSettings, rows: slice = WHOLE) -> None:
        if hook:
            tensors = run.active(rows)
            write(run.progress.call(hook, tensors, settings.lr, rows), tensors)

    def _chunks(self, run: PhaseRun, round: int, epoch: int) -> Iterator[Chunk]:
        """Yields the batches of an epoch, measures the seconds they take, and asks whether to stop."""
        chunks = run.chunks(round, epoch)
        while True:
            if self.stop():
                raise Interrupted
            begin = perf_counter()
            chunk = next(chunks, None)
            self._data_seconds += perf_counter() - begin
            if chunk is None:
                return
            yield chunk


def with_cached(phase: Phase) -> Loss:
    """Returns the phase's loss, which computes the cached values itself in every step."""

    def loss(client: Client, batch: Batch) -> tuple[Tensor, Tensors]:
        with torch.no_grad():
            batch.cached = {name: cache.compute(client, batch.x) for name, cache in phase.cached.items()}
        return phase.loss(client, batch)

    return loss


def first_not_finite(tensors: Tensors, names: Sequence[str], step: int) -> str | None:
    """Returns a message naming the first of ``names`` whose tensor has a NaN or infinite value, or None."""
    for name in names:
        if not bool(torch.isfinite(tensors[name]).all()):
            return f"{name} holds values that are not finite after step {step}"
    return None
