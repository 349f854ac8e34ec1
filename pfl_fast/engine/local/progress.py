"""Progress of local training: steps, losses and recorded quantities of one client or of a stack."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pfl_fast.engine.client_results import LocalReport
from pfl_fast.methods.base import Phase, PhaseProgress, Tensors

Hook = Callable[[Tensors, PhaseProgress], Tensors]
LOSS = ""  # key of the loss among recorded quantities, whose names are not empty


class SingleProgress:
    """Progress of one client; reads the loss after every step."""

    reads_every_loss = True

    def __init__(self, clients: list[int], device: torch.device) -> None:
        self.device = device
        self.report = LocalReport(clients[0])

    @property
    def failed(self) -> bool:
        """True if a loss was not finite."""
        return self.report.problem is not None

    def begin_phase(self, _phase: Phase) -> None:
        """Starts counting the steps of a new phase."""
        self._steps_before, self._last_loss = self.report.steps, math.nan

    def add(self, _rows: slice, size: int, loss: Tensor, recorded: Tensors) -> None:
        """Adds one step on ``size`` samples."""
        self._last_loss = loss.item()
        self.report.add(size, self._last_loss, {name: value.item() for name, value in recorded.items()})

    def call(self, hook: Hook, tensors: Tensors, lr: float, _rows: slice) -> Tensors:
        """Returns ``hook(tensors, progress in this phase)``."""
        steps = torch.full((), self.report.steps - self._steps_before, device=self.device)
        loss = torch.full((), self._last_loss, dtype=torch.float64, device=self.device)
        return hook(tensors, PhaseProgress(steps, lr, loss))

    def pending(self) -> list[Tensor]:
        """Returns the values to read for the report: none."""
        return []

    def reports(self, data_seconds: float, _values: Sequence[list[float]]) -> list[LocalReport]:
        """Returns the client's report."""
        self.report.data_seconds = data_seconds
        return [self.report]


class StackProgress:
    """Progress of a stack of clients, kept on the device so that no step synchronizes with the host."""

    failed, reads_every_loss = False, False  # known only at the end

    def __init__(self, clients: list[int], device: torch.device) -> None:
        self.clients = clients
        self.device = device
        self.steps = [0] * len(clients)
        self._added: list[tuple[slice, int, Tensors]] = []

    def begin_phase(self, phase: Phase) -> None:
        """Starts counting the steps of a new phase."""
        self._has_hooks = bool(phase.after_batch or phase.after_epoch or phase.after)
        self._steps_in_phase = torch.zeros(len(self.clients), dtype=torch.int64, device=self.device)
        self._last_loss = torch.full((len(self.clients),), torch.nan, dtype=torch.float64, device=self.device)

    def add(self, rows: slice, size: int, loss: Tensor, recorded: Tensors) -> None:
        """Adds one step on ``size`` samples of each client in ``rows``; all quantities are ``[C]``."""
        self._added.append((rows, size, {LOSS: loss, **{name: value.detach() for name, value in recorded.items()}}))
        if self._has_hooks:
            self._last_loss[rows].copy_(loss)
            self._steps_in_phase[rows].add_(1)
        for row in range(*rows.indices(len(self.clients))):
            self.steps[row] += 1

    def call(self, hook: Hook, tensors: Tensors, lr: float, rows: slice) -> Tensors:
        """Returns ``hook(tensors, progress in this phase)`` for every client in ``rows``, whose tensors are given."""
        stacked = torch.vmap(lambda own, steps, loss: hook(own, PhaseProgress(steps, lr, loss)))
        values: Tensors = stacked(tensors, self._steps_in_phase[rows], self._last_loss[rows])
        return values

    def pending(self) -> list[Tensor]:
        """Returns the values to read for the reports: loss and recorded quantities of every step."""
        return [value for _, _, values in self._added for value in values.values()]

    def reports(self, data_seconds: float, values: Sequence[list[float]]) -> list[LocalReport]:
        """Returns one report per client, in the order of the stack.

        Args:
            data_seconds: seconds spent loading batches.
            values: the values of :meth:`pending`.
        """
        columns = iter(values)
        reports = [LocalReport(client, data_seconds=data_seconds / len(self.clients)) for client in self.clients]
        for rows, size, names in self._added:
            added = {name: next(columns) for name in names}
            for row, report in enumerate(reports[rows]):
                recorded = {name: column[row] for name, column in added.items() if name != LOSS}
                report.add(size, added[LOSS][row], recorded)
        return reports
