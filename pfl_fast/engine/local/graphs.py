"""Steps of a stack of clients as CUDA graphs: captured once, replayed by a single launch.

The first steps of a kind run eagerly. Then a step runs twice from the same tensors, eagerly and as a graph; later steps
replay the graph if both moved the tensors equally. Sums of some CUDA kernels depend on the order of threads, so they
are not compared to the bit.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from pfl_fast.engine.local.optimizer import StepSettings, write
from pfl_fast.engine.local.recording import NotRecordable
from pfl_fast.engine.local.runner import Chunk, PhaseRun, Step
from pfl_fast.engine.local.steps import Results, StepKeys, Steps
from pfl_fast.methods.base import Batch, Tensors
from pfl_fast.transfer import read

LOGGER = logging.getLogger(__name__)
EAGER_STEPS = 10  # of a kind before its capture, which takes as long as some steps
KEPT_GRAPHS = 64
TOLERANCE = 1e-3
_ONE_CAPTURE = Lock()  # torch allows one at a time in a process


class StepGraph:
    """A captured step.

    Args:
        step_on: returns the step on a batch.
        batch: a batch of the shapes of all later ones.
        pool: memory that the graphs of a worker share: they run one after the other, and results are copied.
        stream: stream of the capture.
    """

    def __init__(self, step_on: Callable[[Batch], Step], batch: Batch, pool: Any, stream: torch.cuda.Stream) -> None:
        copies = {name: value.clone() for name, value in batch.cached.items()}
        self.batch = Batch(batch.x.clone(), batch.y.clone(), batch.seed.clone(), copies)
        self.step = step_on(self.batch)  # kept: the graph uses its tensors
        self.graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        with _ONE_CAPTURE, torch.cuda.stream(stream), capture:
            self.step.run()
        self.step.recorded = {name: value.detach() for name, value in self.step.recorded.items()}

    def replay(self, batch: Batch) -> tuple[Tensor, Tensors]:
        """Runs the step on a batch; returns loss and recorded quantities."""
        for mine, given in zip(tensors_of(self.batch), tensors_of(batch), strict=True):
            mine.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.step.loss.clone(), {name: value.clone() for name, value in self.step.recorded.items()}


class Graphs(Steps):
    """Runs the steps of one worker as CUDA graphs.

    Attributes:
        graphs: graphs by key, None for steps that run eagerly.
        enabled: capture steps; False once the memory of the device was exhausted.
    """

    def __init__(self) -> None:
        self.graphs: dict[tuple[Any, ...], StepGraph | None] = {}
        self.enabled = True
        self._keys = StepKeys()
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._unit: PhaseRun | None = None
        self._addresses: list[int] = []
        self._pool: Any = None

    def run(self, run: PhaseRun, chunk: Chunk, turn: int, settings: StepSettings) -> Results:
        """See :meth:`Steps.run`."""
        if not self.enabled:
            return super().run(run, chunk, turn, settings)
        self._forget_other_addresses(run)
        # A graph has the addresses of its clients' tensors.
        key = (*self._keys.key(run, chunk, turn, settings), chunk.rows.start, chunk.rows.stop)
        self._seen[key] += 1
        if key not in self.graphs and self._seen[key] > EAGER_STEPS:
            return [self._capture(key, run, chunk, turn, settings)]
        graph = self.graphs.get(key)
        if graph is None:
            return super().run(run, chunk, turn, settings)
        return [graph.replay(run.first_batch(chunk))]

    def free(self) -> bool:
        """See :meth:`Steps.free`."""
        if not self._pool:
            return False
        LOGGER.debug("steps run eagerly: the memory of the GPU is exhausted")
        self.enabled = False
        self._clear()
        return True

    def _clear(self) -> None:
        self.graphs.clear()
        self._seen.clear()
        self._unit = self._pool = None

    def _forget_other_addresses(self, run: PhaseRun) -> None:
        """Forgets all graphs if the tensors of a unit are at other addresses than those of the unit before."""
        if run is self._unit:
            return
        addresses = [tensor.data_ptr() for tensor in run.tensors.values()]
        if addresses != self._addresses:
            self._clear()
        self._unit, self._addresses = run, addresses

    def _capture(
        self, key: tuple[Any, ...], run: PhaseRun, chunk: Chunk, turn: int, settings: StepSettings
    ) -> tuple[Tensor, Tensors]:
        """Runs a step eagerly and as a graph, and keeps the graph if both do the same; returns the step's results."""
        for old in [k for k in self.graphs if not self._keys.is_kept(k)] + list(self.graphs)[: -KEPT_GRAPHS + 1]:
            self.graphs.pop(old, None)
        self.graphs[key] = None
        tensors, batch = run.active(chunk.rows), run.first_batch(chunk)

        def step_on(batch: Batch) -> Step:
            return run.step(batch, chunk.rows, turn, settings)

        before: Tensors = {}
        try:
            before = {name: tensor.clone() for name, tensor in tensors.items()}
            step = step_on(batch)
            step.run()
            eager = [*movements(before, tensors), step.loss, *(value.detach() for value in step.recorded.values())]
            del step  # frees its memory before the capture
            write(before, tensors)
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = StepGraph(step_on, batch, self._pool, torch.cuda.Stream(batch.x.device))
            results = graph.replay(batch)
            check(eager, [*movements(before, tensors), results[0], *results[1].values()])
        except Exception as error:  # the run goes on, and an error of the step itself is raised again below
            LOGGER.debug("steps run eagerly: %s", str(error).partition("\n")[0])
            if isinstance(error, torch.OutOfMemoryError):
                self.free()
        else:
            self.graphs[key] = graph
            return results
        write(before, tensors)
        (eager_results,) = super().run(run, chunk, turn, settings)
        return eager_results


def tensors_of(batch: Batch) -> list[Tensor]:
    """Returns all tensors of a batch."""
    return [batch.x, batch.y, batch.seed, *batch.cached.values()]


def movements(before: Tensors, after: Tensors) -> list[Tensor]:
    """Returns how far a step moved each tensor: the sum of its absolute changes."""
    return [(after[name].double() - value.double()).abs().sum() for name, value in before.items()]


def check(eager: Sequence[Tensor], captured: Sequence[Tensor]) -> None:
    """Raises :class:`NotRecordable` unless both have the same values up to rounding; NaN equals NaN."""
    found, expected = ([number for own in read(values) for number in own] for values in (captured, eager))
    for mine, theirs in zip(found, expected, strict=True):
        same = mine == theirs or (mine != mine and theirs != theirs)
        if not same and not abs(mine - theirs) <= TOLERANCE * max(abs(theirs), TOLERANCE):
            raise NotRecordable(f"the captured step has other results than the eager step: {mine:g} and {theirs:g}")
