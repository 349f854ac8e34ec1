"""What happened to a stack of clients, step by step: kept on the device, so that no step waits for a number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pfl_fast.engine.local.optimizer import write
from pfl_fast.engine.local.single import LocalReport
from pfl_fast.methods.base import PhaseProgress, Tensors

Hook = Callable[[Tensors, PhaseProgress], Tensors]
LOSS = ""  # among the quantities that are noted; recorded ones have names


class StackProgress:
    """Steps, samples, losses and recorded quantities of a stack.

    Args:
        clients: of the stack, row by row.
        device: where they train.
    """

    def __init__(self, clients: list[int], device: torch.device) -> None:
        self.clients = clients
        self.device = device
        self.steps = [0] * len(clients)
        self.noted: list[tuple[slice, int, Tensors]] = []
        self.data_seconds = 0.0
        self.begin_phase()

    def begin_phase(self) -> None:
        """From here on steps count as those of a new phase."""
        self.before = list(self.steps)
        self.last = torch.full((len(self.clients),), torch.nan, dtype=torch.float64, device=self.device)

    def seeds(self, rows: slice, noise: Callable[[int, int], int]) -> Tensor:
        """``[C]`` int64, each client's key for its next step."""
        return torch.tensor(
            [noise(c, s) for c, s in zip(self.clients[rows], self.steps[rows], strict=True)], device=self.device
        )

    def add(self, rows: slice, size: int, losses: Tensor, recorded: Tensors) -> None:
        """One step of the clients in ``rows`` on ``size`` samples each; all quantities are ``[C]``."""
        self.noted.append((rows, size, {LOSS: losses, **{name: value.detach() for name, value in recorded.items()}}))
        for row in range(*rows.indices(len(self.clients))):
            self.steps[row] += 1

    def write(self, hook: Hook | None, tensors: Tensors, lr: float, rows: slice = slice(None)) -> None:
        """Writes what a phase's hook makes of the clients in ``rows``, whose ``tensors`` these are."""
        if hook is None:
            return
        taken = [now - before for now, before in zip(self.steps[rows], self.before[rows], strict=True)]
        lifted = torch.vmap(lambda own, steps, loss: hook(own, PhaseProgress(steps, lr, loss)))
        write(lifted(tensors, torch.tensor(taken, device=self.device), self.last[rows]), tensors)

    def note_last(self) -> None:
        """Keeps the losses of the step that was added last, for hooks that ask for them."""
        rows, _, values = self.noted[-1]
        self.last[rows] = values[LOSS].double()

    def reports(self) -> list[LocalReport]:
        """One report per client, in the order of the stack; waits for all numbers, once for each quantity."""
        names = dict.fromkeys(name for _, _, values in self.noted for name in values)
        numbers = {
            name: iter(torch.cat([v[name] for _, _, v in self.noted if name in v]).double().tolist()) for name in names
        }
        share = self.data_seconds / len(self.clients)
        reports = [LocalReport(client, data_seconds=share) for client in self.clients]
        for rows, size, values in self.noted:
            columns = {name: [next(numbers[name]) for _ in reports[rows]] for name in values}
            for place, report in enumerate(reports[rows]):
                recorded = {name: column[place] for name, column in columns.items() if name != LOSS}
                report.add(size, columns[LOSS][place], recorded)
        return reports
