"""Local training and tests of one client, whose tensors are bound to the modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor

from pfl_fast.data.federated import FederatedData, StackedBatch
from pfl_fast.engine.local.linear_gradients import GradientFactors, LinearGradients
from pfl_fast.engine.local.modules import bind, evaluate_at
from pfl_fast.engine.local.optimizer import StepSettings, identity, only_steps, takes_factors, update
from pfl_fast.engine.local.progress import SingleProgress
from pfl_fast.engine.local.trainer import CachedValues, Predict, Runner, Step, gradients_of
from pfl_fast.engine.state.part_table import PartTable, TensorSpec
from pfl_fast.methods.base import Batch, Loss, Method, Phase, Tensors
from pfl_fast.nn import seed_dropout

WHOLE = slice(None)


class SingleStep(Step):
    """The updates of one client on a batch; gradients of linear layers stay factors where possible."""

    def __init__(
        self,
        runner: SingleRunner,
        parameters: Mapping[str, Tensor],
        phase: Phase,
        batch: Batch,
        settings: StepSettings,
    ) -> None:
        super().__init__(phase, batch, settings)
        self.runner = runner
        self.parameters = parameters

    def values(self) -> Tensors:
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def gradients(self) -> tuple[Tensors, Mapping[str, GradientFactors]]:
        linear = self.runner.linear
        self.loss, self.recorded = linear.record(self.runner.loss, self.runner.client, self.batch)
        gradients, factors = linear.gradients(self.loss, self.parameters)
        if not takes_factors(self.phase, self.settings):
            gradients.update({name: linear.product(name, factors.pop(name)) for name in list(factors)})
        return gradients, factors

    def gradient_at(self, values: Tensors, samples: slice = WHOLE, reported: bool = True) -> Tensors:
        parameters = {name: value.detach().requires_grad_() for name, value in values.items()}
        cached = {name: value[samples] for name, value in self.batch.cached.items()}
        batch = Batch(self.batch.x[samples], self.batch.y[samples], self.batch.seed, cached)
        loss, recorded = evaluate_at(self.runner.client, self.runner.loss, parameters, batch)
        if reported:
            self.loss, self.recorded = loss.detach(), recorded
        return gradients_of(loss, parameters)

    def update(self, gradients: Tensors, factors: Mapping[str, GradientFactors]) -> None:
        tensors, buffers = self.runner.tensors, self.runner.write_buffers
        moving = [name for name in buffers if name in self.parameters]
        update(self.phase, gradients, tensors, self.batch.seed, self.settings, identity, factors, buffers)
        for name in moving:
            self.parameters[name].data = tensors[name]


class SingleRunner(Runner):
    """Runs one client at a time. Arguments as of :class:`~pfl_fast.engine.local.trainer.Runner`."""

    progress: SingleProgress

    def __init__(self, part_table: PartTable, method: Method, data: FederatedData, device: torch.device) -> None:
        super().__init__(part_table, method, data, device)
        self.linear = LinearGradients(self.client)
        self.tensors: Tensors = {}
        self.write_buffers: Tensors = {}

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
        return self.read_in_place(views[0], self.read_only_names(phases, settings))

    def read_in_place(self, view: Tensors, read_only: Mapping[str, bool]) -> tuple[Tensors, Tensors]:
        """Returns the client's tensors, copied unless named in ``read_only`` and on this device, and write buffers."""
        specs = self.part_table.specs
        here = {name for name in read_only if view[name].device == self.device}
        # Rows of a block share the block's autograd version counter, so another client's write would look like an
        # in-place change of this row. `.data` has its own counter.
        tensors = {s.key: view[s.key].data if s.key in here else self._copied(s, view[s.key]) for s in specs}
        return tensors, {s.key: self._memory(s) for s in specs if s.key in here and read_only[s.key]}

    def _copied(self, spec: TensorSpec, value: Tensor) -> Tensor:
        return self._memory(spec).copy_(value)

    def _memory(self, spec: TensorSpec) -> Tensor:
        return self.scratch(spec.key, spec.value.shape, spec.value.dtype)

    def gather(self, views: Sequence[Tensors]) -> Tensors:
        return views[0]

    def copy(self, views: Sequence[Tensors]) -> Tensors:
        return {spec.key: views[0][spec.key].to(self.device, copy=True) for spec in self.part_table.specs}

    def row(self, tensors: Tensors, row: int) -> Tensors:
        return tensors

    def begin(self, clients: list[int], tensors: Tensors, write_buffers: Tensors) -> None:
        self.progress = SingleProgress(clients[0], self.device)
        self.tensors, self.write_buffers = tensors, write_buffers

    def end(self) -> None:
        self.tensors, self.write_buffers = {}, {}

    def begin_phase(self, phase: Phase, loss: Loss, rotation: list[list[str]]) -> None:
        self.phase, self.loss = phase, loss
        bind(self.client, self.tensors, set(self.trained_names(phase)))
        self._parameters = [{name: self.client.get_parameter(name) for name in names} for names in rotation]

    def bind_client(self, row: int) -> None:
        """Does nothing: :meth:`begin_phase` has bound the client."""

    def batches(self, phase: Phase, round: int, epoch: int) -> Iterator[tuple[int, StackedBatch]]:
        data, client = self.source(phase), self.progress.report.client
        limit = phase.limit(data.steps(client)) if phase.limit else None
        for number, batch in enumerate(islice(data.batches(client, round, epoch), limit)):
            yield number, StackedBatch(WHOLE, *batch)

    def seed(self, rows: slice, settings: StepSettings) -> Tensor:
        noise = self.noise(settings, self.progress.report.client, self.progress.report.steps)
        if self.seed_names:
            seed_dropout(self.client, noise)
        return torch.tensor(noise, device=self.device)

    def cached(self, table: CachedValues, rows: slice, position: Tensor) -> Tensor:
        return table.values[position]

    def step(self, batch: Batch, rows: slice, turn: int, settings: StepSettings) -> Step:
        return SingleStep(self, self._parameters[turn], self.phase, batch, settings)

    def active(self, rows: slice) -> Tensors:
        return self.tensors

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
            seed = torch.tensor(seeds(-1 if client is None else client, number), device=data.device)
            logits.append(predict(module, Batch(x, y, seed)))
            labels.append(y)
    return (torch.cat(logits), torch.cat(labels)) if labels else (torch.empty(0, 0), torch.empty(0, dtype=torch.int64))
