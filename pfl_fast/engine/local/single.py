"""Local training and tests of one client, whose tensors are bound to the modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.local.linear_gradients import GradientFactors, LinearGradients
from pfl_fast.engine.local.modules import bind, evaluate_at
from pfl_fast.engine.local.optimizer import StepSettings, identity, only_steps, takes_factors, update
from pfl_fast.engine.local.program import StepProgram
from pfl_fast.engine.local.progress import SingleProgress
from pfl_fast.engine.local.runner import WHOLE, Chunk, PhaseRun, Predict, Runner, Step
from pfl_fast.engine.state.part_table import PartTable, TensorSpec
from pfl_fast.methods.base import Batch, Method, Phase, Tensors
from pfl_fast.nn import seed_dropout
from pfl_fast.transfer import to_device


@dataclass(eq=False)
class SingleStep(Step):
    """The updates of one client on a batch; gradients of linear layers stay factors where possible."""

    training: SinglePhase

    def gradients(self) -> tuple[Tensors, Mapping[str, GradientFactors]]:
        linear = self.training.runner.linear
        self.loss, self.recorded = linear.record(self.training.loss, self.training.runner.client, self.batch)
        gradients, factors = linear.gradients(self.loss, self.parameters)
        if not takes_factors(self.phase, self.settings):
            gradients.update({name: linear.product(name, factors.pop(name)) for name in list(factors)})
        return gradients, factors

    def loss_at(self, parameters: Tensors, samples: slice) -> tuple[Tensor, Tensors]:
        cached = {name: value[samples] for name, value in self.batch.cached.items()}
        batch = Batch(self.batch.x[samples], self.batch.y[samples], self.batch.seed, cached)
        loss: tuple[Tensor, Tensors] = evaluate_at(self.training.runner.client, self.training.loss, parameters, batch)
        return loss

    def update(self, gradients: Tensors, factors: Mapping[str, GradientFactors]) -> None:
        tensors, buffers = self.training.tensors, self.training.write_buffers
        moving = [name for name in buffers if name in self.parameters]
        update(self.phase, gradients, tensors, self.batch.seed, self.settings, identity, factors, buffers)
        for name in moving:
            self.parameters[name].data = tensors[name]


@dataclass(eq=False)
class SinglePhase(PhaseRun):
    """One phase of one client, whose tensors are bound to the modules."""

    runner: SingleRunner
    progress: SingleProgress

    def __post_init__(self) -> None:
        client = self.runner.client
        bind(client, self.tensors, set(self.runner.trained_names(self.phase)))
        self._parameters = [{name: client.get_parameter(name) for name in names} for names in self.rotation]

    def chunks(self, round: int, epoch: int) -> Iterator[Chunk]:
        data, client, first = self.runner.source(self.phase), self.progress.report.client, 0
        steps = self.runner.steps(self.phase, client)
        for batches in data.chunks(client, round, epoch):
            chunk = Chunk(first, WHOLE, *batches).cut(0, steps - first)
            if first < steps:
                yield chunk
            first += len(chunk.y)

    def begin_epoch(self, settings: StepSettings, epoch: int) -> None:
        report, steps = self.progress.report, self.runner.steps(self.phase, self.progress.report.client)
        first = report.steps if self.phase.first_epoch is None else epoch * steps
        noise = [self.runner.noise(settings, report.client, first + number) for number in range(steps)]
        self._seeds = to_device(noise, self.runner.device)

    def seeds(self, numbers: slice, rows: slice) -> Tensor:
        return self._seeds[numbers]

    def step(self, batch: Batch, rows: slice, turn: int, settings: StepSettings) -> Step:
        if self.runner.seed_names:
            seed_dropout(self.runner.client, batch.seed)
        return SingleStep(self.phase, self._parameters[turn], batch, settings, self)

    def active(self, rows: slice) -> Tensors:
        return self.tensors

    def inputs(self, step: Step) -> list[tuple[str, Tensor]]:
        client = self.runner.client
        bound = [*client.named_parameters(), *client.named_buffers()]
        named = [*self.tensors.items(), *self.write_buffers.items(), *bound]
        seeds = [("seed", client.get_buffer(name)) for name in self.runner.seed_names]
        return [(name, tensor) for name, tensor in named if name in self.tensors] + seeds

    def begin_program(self, program: StepProgram, rows: slice) -> tuple[list[Tensor], list[Tensor]]:
        start = dict(self.tensors)
        for name in [name for name in self.write_buffers if name in program.written]:
            self.tensors[name] = self.write_buffers.pop(name)
            if name not in program.replaced:
                start[name] = self.tensors[name].copy_(start[name])
            self.runner.client.get_parameter(name).data = self.tensors[name]
        return [self.tensors[name] for name in program.names], [start[name] for name in program.names]


class SingleRunner(Runner):
    """Runs one client at a time. Arguments as of :class:`~pfl_fast.engine.local.runner.Runner`."""

    progress_class = SingleProgress
    phase_class = SinglePhase

    def __init__(self, part_table: PartTable, method: Method, data: FederatedData, device: torch.device) -> None:
        super().__init__(part_table, method, data, device)
        self.linear = LinearGradients(self.client)

    def read_only_names(self, phases: Sequence[Phase], settings: StepSettings) -> dict[str, bool]:
        """Returns the tensors that training may read in place, and whether an update moves them to a write buffer."""
        if not all(only_steps(phase) and takes_factors(phase, settings.for_phase(phase)) for phase in phases):
            return {}
        trained = {part for phase in phases for part in phase.train}
        weights = set(self.linear.weights.values())
        updated = {spec.key: spec.part in trained for spec in self.part_table.specs if spec.parameter}
        return {name: moves for name, moves in updated.items() if name in weights or not moves}

    def load(
        self, views: Sequence[Tensors], phases: Sequence[Phase], settings: StepSettings
    ) -> tuple[Tensors, Tensors]:
        specs, view, read_only = self.part_table.specs, views[0], self.read_only_names(phases, settings)
        here = {name for name in read_only if view[name].device == self.device}
        # Rows of a block share the block's autograd version counter, so another client's write would look like an
        # in-place change of this row. `.data` has its own counter.
        tensors = {s.key: view[s.key].data if s.key in here else self._memory(s).copy_(view[s.key]) for s in specs}
        return tensors, {s.key: self._memory(s) for s in specs if s.key in here and read_only[s.key]}

    def _memory(self, spec: TensorSpec) -> Tensor:
        return self.scratch(spec.key, spec.value.shape, spec.value.dtype)

    def gather(self, views: Sequence[Tensors]) -> Tensors:
        return views[0]

    def copy(self, views: Sequence[Tensors]) -> Tensors:
        return {spec.key: views[0][spec.key].to(self.device, copy=True) for spec in self.part_table.specs}

    def row(self, tensors: Tensors, row: int) -> Tensors:
        return tensors

    def as_stack(self, tensors: Tensors) -> Tensors:
        return {name: tensor[None] for name, tensor in tensors.items()}

    def call(self, hook: Callable[[Tensors], Tensors], tensors: Tensors) -> Tensors:
        return self.as_stack(hook(tensors))

    def sums(self, tensor: Tensor) -> Tensor:
        return tensor.sum()

    def logits(
        self, predict: Predict, clients: Sequence[int], tensors: Tensors, split: str, seeds: Callable[[int, int], int]
    ) -> list[tuple[Tensor, Tensor]]:
        bind(self.client, {name: tensor.to(self.device) for name, tensor in tensors.items()}, set())
        self.client.eval()
        return [predictions(predict, self.client, self.data, split, clients[0], seeds)]


def predictions(
    predict: Predict,
    module: torch.nn.Module,
    data: FederatedData,
    split: str,
    client: int | None,
    seeds: Callable[[int, int], int],
) -> tuple[Tensor, Tensor]:
    """Returns logits and labels of a module on the samples of one client, or of all clients if ``client`` is None."""
    logits, labels = [], []
    with torch.no_grad():
        for number, (x, y) in enumerate(data.evaluation(split, client)):
            seed = to_device([seeds(-1 if client is None else client, number)], data.device)
            logits.append(predict(module, Batch(x, y, seed[0])))
            labels.append(y)
    return (torch.cat(logits), torch.cat(labels)) if labels else (torch.empty(0, 0), torch.empty(0, dtype=torch.int64))
