"""How much memory a run will take, before it starts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.layout import Layout
from pfl_fast.engine.sampling import sample
from pfl_fast.engine.settings import RoundSettings
from pfl_fast.engine.training import SingleTrainer
from pfl_fast.errors import PflFastError
from pfl_fast.methods.base import Batch, Method


class TooLarge(PflFastError):  # noqa: N818 says what it is
    """A run does not fit into memory."""


@dataclass(frozen=True)
class Estimate:
    """Bytes of main memory that a run on the CPU will take at most, by what they are for.

    Attributes:
        program: what the process holds already: Python, torch, this library.
        samples: of the data set; memory-mapped pages can be given back when memory gets short.
        client_state: rows of all clients that may take part.
        server: its tensors, and the uploads of a round.
        training: each worker's copy of a client, its gradients and activations, and features computed once.
    """

    program: int
    samples: int
    client_state: int
    server: int
    training: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, f.name) for f in fields(self))

    def __str__(self) -> str:
        parts = ", ".join(f"{f.name.replace('_', ' ')} {size(getattr(self, f.name))}" for f in fields(self))
        return f"about {size(self.total)} ({parts})"


def size(count: float) -> str:
    """Bytes for a person to read.

    >>> size(1536), size(3 << 30)
    ('1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.1f} GiB"


def estimate(
    layout: Layout, method: Method, data: FederatedData, settings: RoundSettings, copies: int, on_disk: bool
) -> Estimate:
    """Adds up what a run will take; activations are measured on one batch.

    Args:
        layout: the part table.
        method: whose loss is tried.
        data: of the clients.
        settings: of the rounds.
        copies: clients that train at the same time.
        on_disk: clients' state is in mapped files, which need no memory.
    """
    cohort = sample(settings, data.clients, 1)
    ever = min(data.clients, len(cohort.trains) * settings.rounds)
    uploads = sum(e.value.nbytes for e in layout.uploaded) * len(cohort.uploads)
    return Estimate(
        program=resident(),
        samples=data.bytes,
        client_state=0 if on_disk else ever * layout.bytes_per_client(),
        server=2 * sum(t.nbytes for t in layout.server_common.values()) + uploads,
        training=copies * step_bytes(layout, method, data),
    )


def step_bytes(layout: Layout, method: Method, data: FederatedData) -> int:
    """What one client takes while it trains: tensors twice (modules and scratch), gradients, activations, tables."""
    trainer = SingleTrainer(layout, method, data, torch.device("cpu"), lambda: False)
    own = sum(e.value.nbytes for e in layout.entries)
    largest = int(data.train_sizes.argmax())
    most = 0
    for phase in method.phases(1):
        keys = set(trainer.trained_keys(phase))
        gradients = sum(e.value.nbytes for e in layout.entries if e.key in keys)
        x, y, _ = next(iter(data.batches(largest, 1, 0)))
        once = trainer.once(phase, x)
        tables = sum(t.nbytes // len(t) for t in once.values()) * int(data.train_sizes[largest])
        for name, parameter in trainer.client.named_parameters():
            parameter.requires_grad_(name in keys)
        kept: dict[int, int] = {}

        def keep(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            phase.loss(trainer.client, Batch(x, y, torch.tensor(0), once))
        for tensor in trainer.client.parameters():
            kept.pop(tensor.untyped_storage().data_ptr(), None)
        most = max(most, gradients + tables + 2 * sum(kept.values()))
    return 2 * own + most


def resident() -> int:
    """Bytes of main memory this process holds; 0 where that cannot be found out."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * 4096


def available() -> int | None:
    """Bytes of main memory that could still be had; None where that cannot be found out."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def refuse_if_too_large(needed: Estimate) -> None:
    """Raises ``TooLarge`` with what would help; samples do not count, as mapped pages are given back."""
    room = available()
    if room is None:
        return
    more = needed.total - needed.program - needed.samples
    if more > room:
        raise TooLarge(
            f"this run needs {needed}, but only {size(room)} are free. --state disk keeps clients' state in files; "
            "fewer --workers, a smaller --stack, --join-ratio or --batch-size, or a smaller model need less"
        )
