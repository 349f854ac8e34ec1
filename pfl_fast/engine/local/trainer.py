"""Local training: phases, epochs, chunks of steps, cached values and hooks, for one client or a stack of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import isfinite
from time import perf_counter

import torch
from torch import Tensor

from pfl_fast.engine.client_results import LocalReport
from pfl_fast.engine.local.arithmetic import with_bf16_products
from pfl_fast.engine.local.modules import set_mode
from pfl_fast.engine.local.optimizer import StepSettings, write
from pfl_fast.engine.local.progress import Hook, SingleProgress, StackProgress
from pfl_fast.engine.local.runner import WHOLE, Chunk, PhaseRun, Runner
from pfl_fast.engine.local.steps import Steps
from pfl_fast.engine.stopping import Interrupted
from pfl_fast.methods.base import Batch, Client, Loss, Phase, Tensors
from pfl_fast.transfer import read


class Trainer:
    """Trains units of clients.

    Args:
        runner: executes the steps.
        stop: asked between chunks of steps; True raises :class:`Interrupted`.
        steps: runs steps; None runs all of them eagerly.
    """

    def __init__(self, runner: Runner, stop: Callable[[], bool], steps: Steps | None = None) -> None:
        self.runner = runner
        self.stop = stop
        self.steps = steps or Steps()
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
            part = chunk.cut(done, done + 1 if one_by_one else len(chunk.y))
            results = self.steps.run(run, part, part.first % turns, own)
            for loss, recorded in results:
                progress.add(chunk.rows, chunk.y.shape[-1], loss, recorded)
            if progress.failed and settings.stop_at_nan:
                return False
            self._run_hook(run, run.phase.after_batch, settings, chunk.rows)
            done += len(results)
        return True

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
