"""Progress of local training: steps, losses and recorded quantities of one client or of a stack."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pfl_fast.engine.client_results import LocalReport
from pfl_fast.methods.base import Phase, PhaseProgress, Tensors

Hook = Callable[[Tensors, PhaseProgress], Tensors]
LOSS = ""  # key of the loss among recorded quantities, whose names are not empty


class SingleProgress:
    """Progress of one client; reads the loss after every step."""

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
        steps = torch.tensor(self.report.steps - self._steps_before, device=self.device)
        loss = torch.tensor(self._last_loss, dtype=torch.float64, device=self.device)
        return hook(tensors, PhaseProgress(steps, lr, loss))

    def reports(self, data_seconds: float) -> list[LocalReport]:
        """Returns the client's report."""
        self.report.data_seconds = data_seconds
        return [self.report]


class StackProgress:
    """Progress of a stack of clients, kept on the device so that no step synchronizes with the host."""

    failed = False  # known only at the end

    def __init__(self, clients: list[int], device: torch.device) -> None:
        self.clients = clients
        self.device = device
        self.steps = [0] * len(clients)
        self._added: list[tuple[slice, int, Tensors]] = []

    def begin_phase(self, phase: Phase) -> None:
        """Starts counting the steps of a new phase."""
        self._steps_before = list(self.steps)
        self._hooks_read_loss = bool(phase.after_batch or phase.after_epoch or phase.after)
        self._last_loss = torch.full((len(self.clients),), torch.nan, dtype=torch.float64, device=self.device)

    def add(self, rows: slice, size: int, loss: Tensor, recorded: Tensors) -> None:
        """Adds one step on ``size`` samples of each client in ``rows``; all quantities are ``[C]``."""
        self._added.append((rows, size, {LOSS: loss, **{name: value.detach() for name, value in recorded.items()}}))
        if self._hooks_read_loss:
            self._last_loss[rows] = loss.double()
        for row in range(*rows.indices(len(self.clients))):
            self.steps[row] += 1

    def call(self, hook: Hook, tensors: Tensors, lr: float, rows: slice) -> Tensors:
        """Returns ``hook(tensors, progress in this phase)`` for every client in ``rows``, whose tensors are given."""
        steps = [now - before for now, before in zip(self.steps[rows], self._steps_before[rows], strict=True)]
        stacked = torch.vmap(lambda own, steps, loss: hook(own, PhaseProgress(steps, lr, loss)))
        values: Tensors = stacked(tensors, torch.tensor(steps, device=self.device), self._last_loss[rows])
        return values

    def reports(self, data_seconds: float) -> list[LocalReport]:
        """Returns one report per client, in the order of the stack; synchronizes once per quantity."""
        names = dict.fromkeys(name for _, _, values in self._added for name in values)
        numbers = {
            name: iter(torch.cat([v[name] for _, _, v in self._added if name in v]).double().tolist()) for name in names
        }
        reports = [LocalReport(client, data_seconds=data_seconds / len(self.clients)) for client in self.clients]
        for rows, size, values in self._added:
            columns = {name: [next(numbers[name]) for _ in reports[rows]] for name in values}
            for row, report in enumerate(reports[rows]):
                recorded = {name: column[row] for name, column in columns.items() if name != LOSS}
                report.add(size, columns[LOSS][row], recorded)
        return reports
