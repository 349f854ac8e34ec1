"""How clients run side by side. Whatever is chosen, every client sees the same batches, noise and steps.

sequential   one after another on one device; the oracle, and the debugger's friend
threads      several at once, each on one core
batched      all in one stack, by vmap; where launches cost more than arithmetic
several devices: each has a worker of its own, and clients are dealt to them by cost
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from copy import deepcopy
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.local.modules import bind
from pfl_fast.engine.local.optimizer import StepSettings, write
from pfl_fast.engine.local.single import LocalReport, SingleTrainer
from pfl_fast.engine.local.stacked import StackedTrainer
from pfl_fast.engine.results.metrics import Metric, Score, score
from pfl_fast.engine.state.part_table import PartTable, TensorSpec
from pfl_fast.engine.stopping import StopFlag
from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import Batch, Client, Method, Phase, Tensors
from pfl_fast.randomness import key

Unit = TypeVar("Unit")
Result = TypeVar("Result")


class Worker:
    """One place where clients train and are tested: a device, modules, scratch memory."""

    def __init__(
        self,
        part_table: PartTable,
        method: Method,
        data: FederatedData,
        metrics: Mapping[str, Metric],
        device: torch.device,
        stop: StopFlag,
    ) -> None:
        self.part_table = part_table
        self.method = method
        self.metrics = metrics
        self.data = data.to(device)
        self.device = device
        self.single = SingleTrainer(part_table, method, self.data, device, stop.is_set)
        self.stacked = StackedTrainer(part_table, method, self.data, device, stop.is_set)
        # Tests are never cut short: a round whose clients have trained is over, and its record must be made.
        self.adapter = SingleTrainer(part_table, method, self.data, device, lambda: False)
        self.scratch: Tensors = {}

    def load(self, views: Sequence[Tensors], stack: bool) -> Tensors:
        """Copies clients into scratch memory: ``[C, *shape]``, or without the client axis for one alone."""
        return {e.key: self._copied(e, [view[e.key] for view in views], stack) for e in self.part_table.specs}

    def borrow(self, view: Tensors, moves: Mapping[str, bool]) -> tuple[Tensors, Tensors]:
        """One client's tensors, those that are named where they are if that is on this device, and room for what moves.

        Args:
            view: where its tensors are.
            moves: by name, whether a step will move it.
        """
        here = {name for name in moves if view[name].device == self.device}
        specs = self.part_table.specs
        # A row shares its count of changes with its block, so that autograd would take what other clients write to
        # theirs in the meantime for a change of this one: .data has a count of its own.
        tensors = {e.key: view[e.key].data if e.key in here else self._copied(e, [view[e.key]], False) for e in specs}
        return tensors, {e.key: self._scratch(e, e.value.shape) for e in specs if e.key in here and moves[e.key]}

    def _copied(self, spec: TensorSpec, values: Sequence[Tensor], stack: bool) -> Tensor:
        copies = self._scratch(spec, (len(values), *spec.value.shape) if stack else spec.value.shape)
        for row, value in enumerate(values):
            (copies[row] if stack else copies).copy_(value)
        return copies

    def _scratch(self, spec: TensorSpec, shape: Sequence[int]) -> Tensor:
        if spec.key not in self.scratch or self.scratch[spec.key].shape != tuple(shape):
            self.scratch[spec.key] = torch.empty(tuple(shape), dtype=spec.value.dtype, device=self.device)
        return self.scratch[spec.key]

    def train(
        self,
        clients: list[int],
        views: Sequence[Tensors],
        phases: Sequence[Phase],
        step_settings: StepSettings,
        stack: bool,
    ) -> list[Trained]:
        """Local training from what ``views`` hold, which is left as it is."""
        if not stack:
            tensors, room = self.borrow(views[0], self.single.borrowed(phases, step_settings))
            return [Trained(self.single.train(clients[0], tensors, phases, step_settings, room), tensors)]
        tensors = self.load(views, stack)
        reports = self.stacked.train(clients, tensors, phases, step_settings)
        return [Trained(report, {name: t[row] for name, t in tensors.items()}) for row, report in enumerate(reports)]

    def adapt(self, client: int, tensors: Tensors, phases: Sequence[Phase], step_settings: StepSettings) -> Tensors:
        """A copy of a client's tensors after some phases, such as those before a test."""
        copies = {e.key: tensors[e.key].to(self.device, copy=True) for e in self.part_table.specs}
        write(self.method.on_receive(copies, at="start"), copies)
        self.adapter.train(client, copies, phases, step_settings)
        return copies

    def test(self, client: int, tensors: Tensors, split: str, round: int, seed: int, whole_batches: int = 0) -> Score:
        """A client's own model on its own samples of a split.

        Args:
            client: whose samples.
            tensors: of its model, on any device.
            split: ``"test"``, ``"validation"`` or ``"train"``.
            round: for noise in the prediction, if the method has any.
            seed: of the run.
            whole_batches: leave out the samples beyond a multiple of this; 0: none.
        """
        module = self.single.client
        bind(module, {name: t.to(self.device) for name, t in tensors.items()}, set())
        return self._test(module, self.method.predict, split, client, round, seed, whole_batches)

    def test_global(self, tensors: Tensors, round: int, seed: int) -> Score | None:
        """The server's model on the union of all clients' test samples; None without such a model or such samples."""
        server = Client({name: deepcopy(module) for name, module in self.part_table.server_parts.items()}).to(
            self.device
        )
        bind(server, tensors, set())
        first = next(self.data.evaluation("test", None, batch_size=1), None)
        if first is None:
            return None
        x, y = first
        with torch.no_grad():
            server.eval()
            if self.method.predict_global(server, Batch(x, y, torch.tensor(0, device=self.device))) is None:
                return None
        return self._test(server, self.method.predict_global, "test", None, round, seed, 0)

    def _test(
        self,
        module: Client,
        predict: Callable[[Client, Batch], Any],
        split: str,
        client: int | None,
        round: int,
        seed: int,
        whole_batches: int,
    ) -> Score:
        module.eval()
        logits, labels = [], []
        with torch.no_grad():
            for number, (x, y) in enumerate(self.data.evaluation(split, client)):
                noise = key(seed, "evaluation", -1 if client is None else client, round, number)
                logits.append(predict(module, Batch(x, y, torch.tensor(noise, device=self.device))))
                labels.append(y)
        if not labels:
            return Score(0, 0)
        outputs, targets = torch.cat(logits), torch.cat(labels)
        if whole_batches and len(targets) >= whole_batches:
            used = len(targets) // whole_batches * whole_batches
            outputs, targets = outputs[:used], targets[:used]
        return score(outputs, targets, self.metrics)


class Trained:
    """A client after local training: its report, and its tensors until the worker's next client."""

    def __init__(self, report: LocalReport, tensors: Tensors) -> None:
        self.report = report
        self.tensors = tensors


class Executor:
    """Deals clients to workers.

    Args:
        kind: ``"sequential"``, ``"threads"``, ``"batched"`` or ``"auto"``.
        devices: one or more; ``auto`` means threads on the CPU and batched on GPUs.
        workers: how many threads on the CPU; 0: one per core.
        stack: most clients in one stack; 0: all of a worker's.
        layout, method, data: what to train.
        metrics: metrics of the tests, by name.
    """

    def __init__(
        self,
        kind: str,
        devices: Sequence[torch.device],
        workers: int,
        stack: int,
        part_table: PartTable,
        method: Method,
        data: FederatedData,
        metrics: Mapping[str, Metric],
    ) -> None:
        cpu = devices[0].type == "cpu"
        self.kind = kind if kind != "auto" else ("threads" if cpu else "batched")
        if self.kind == "batched":
            _refuse_unstackable(part_table.client)
        places = list(devices)
        if self.kind == "threads" and cpu:
            places = [devices[0]] * (workers or os.cpu_count() or 1)
        self.stop = StopFlag()
        self.stack = stack
        self.workers = [Worker(part_table, method, data, metrics, place, self.stop) for place in places]
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            self._idle.put(worker)
        one_core_each = self.kind == "threads" and cpu
        self._pool = ThreadPoolExecutor(len(places), "pfl-fast", initializer=_one_core if one_core_each else None)

    def units(self, clients: Sequence[int]) -> list[list[int]]:
        """Clients, the costliest first, in portions that one worker trains at a time."""
        if self.kind != "batched":
            return [[c] for c in clients]
        count = len(self.workers)
        shards = [clients[i::count] for i in range(count)]  # sorted by cost, so that dealing in turn is even
        size = self.stack or len(clients) or 1
        return [list(shard[i : i + size]) for shard in shards for i in range(0, len(shard), size)]

    def run(self, units: Sequence[Unit], work: Callable[[Worker, Unit], Result]) -> Iterator[tuple[Unit, Result]]:
        """Does ``work`` for every unit on some worker; yields results as they come, raises the first error."""
        if self.kind == "sequential":
            for unit in units:
                yield unit, self._on_idle(work, unit)
            return
        futures: dict[Future[Result], Unit] = {self._pool.submit(self._on_idle, work, unit): unit for unit in units}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()
            wait(futures)

    def _on_idle(self, work: Callable[[Worker, Unit], Result], unit: Unit) -> Result:
        worker = self._idle.get()
        try:
            return work(worker, unit)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()


def _refuse_unstackable(client: Client) -> None:
    for name, module in client.named_modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.momentum is None:
            raise ConfigError(
                f"executor: {name} has momentum=None, which cannot run in a stack; use threads, or give it a momentum"
            )


def _one_core() -> None:
    torch.set_num_threads(1)
