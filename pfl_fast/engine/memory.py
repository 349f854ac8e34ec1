"""How much memory a run will take, before it starts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import torch

from pfl_fast.data.federated import EVALUATION_BATCH, FederatedData
from pfl_fast.engine.allocations import Allocations
from pfl_fast.engine.local.modules import bind, set_mode
from pfl_fast.engine.local.optimizer import StepSettings
from pfl_fast.engine.local.single import SingleRunner
from pfl_fast.engine.sampling import sample
from pfl_fast.engine.settings import RoundSettings
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.errors import PflFastError
from pfl_fast.methods.base import Batch, Method, Phase, Tensors


class TooLarge(PflFastError):  # noqa: N818 says what it is
    """A run does not fit into memory."""


@dataclass(frozen=True)
class Estimate:
    """Bytes of main memory that a run on the CPU will take at most, by what they are for.

    Attributes:
        program: what the process holds already: Python, torch, this library.
        samples: of the data set; memory-mapped pages can be given back when memory gets short.
        client_state: rows of all clients that may take part.
        server: its tensors, the uploads of a round, and what is mixed from them.
        training: clients that train side by side, with gradients, activations and features computed once; copies that
            are adapted before a test.
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
    part_table: PartTable,
    method: Method,
    data: FederatedData,
    settings: RoundSettings,
    copies: int,
    workers: int,
    on_disk: bool,
) -> Estimate:
    """Adds up what a run will take; local training and tests are tried on one batch.

    Args:
        part_table: the part table.
        method: whose losses and prediction are tried.
        data: of the clients.
        settings: of the rounds.
        copies: clients that train at the same time.
        workers: clients that are tested at the same time.
        on_disk: clients' state is in mapped files, which need no memory.
    """
    program = resident()
    cohort = sample(settings, data.clients, 1)
    ever = min(data.clients, len(cohort.training) * settings.rounds)
    sent = sum(e.value.nbytes for e in part_table.uploaded) + sum(e.value.nbytes for e in part_table.mixed)
    uploads = sent * len(cohort.uploading)
    trial = Trial(part_table, method, data, settings)
    own = sum(e.value.nbytes for e in part_table.specs)
    adapted = workers if method.before_test(2, "after_local") or method.before_test(2, "after_agg") else 0
    return Estimate(
        program=program,
        samples=data.bytes,
        client_state=0 if on_disk else ever * part_table.bytes_per_client(),
        server=2 * sum(t.nbytes for t in part_table.server_common.values()) + uploads,
        training=(copies + adapted) * own + max(copies * trial.step_bytes(), workers * trial.test_bytes()),
    )


class Trial:
    """One client's training and test on one batch, to see what memory they take beside the client's tensors."""

    def __init__(self, part_table: PartTable, method: Method, data: FederatedData, settings: RoundSettings) -> None:
        self.part_table, self.method, self.data = part_table, method, data
        self.trainer = SingleRunner(part_table, method, data, torch.device("cpu"))
        self.step_settings = StepSettings(settings.lr, settings.momentum, settings.weight_decay, settings.seed, round=1)
        self.largest = int(data.train_sizes.argmax())

    def step_bytes(self) -> int:
        """The most that a step of any phase takes: activations, gradients, what is computed once."""
        tensors = {e.key: e.value.clone() for e in self.part_table.specs}
        set_mode(self.trainer.client, self.part_table.parts, training=True)
        return max(self._phase_bytes(phase, tensors) for phase in self.method.every_phase())

    def _phase_bytes(self, phase: Phase, tensors: Tensors) -> int:
        runner = self.trainer
        runner.begin([self.largest], tensors, {})
        runner.begin_phase(phase, [runner.trained_names(phase)])
        allocations = Allocations()
        with allocations:
            batch = self._batch(runner.source(phase))
            with torch.no_grad():
                batch.cached = {name: c.compute(runner.client, batch.x) for name, c in phase.cached.items()}
            runner.step(phase, phase.loss, batch, slice(None), 0, self.step_settings).run()
        per_sample = sum(t.nbytes // len(t) for t in batch.cached.values())
        tables = 0 if runner.recomputes_each_step(phase) else per_sample * int(self.data.train_sizes[self.largest])
        return allocations.most + tables

    def test_bytes(self) -> int:
        """What the prediction for a batch of test samples takes."""
        bind(self.trainer.client, self.part_table.common, set())
        set_mode(self.trainer.client, self.part_table.parts, training=False)
        most = int(max(self.data.test_sizes.max(), self.data.validation_sizes.max()))
        allocations = Allocations()
        with torch.no_grad(), allocations:
            batch = self._batch(self.data)
            self.method.predict(self.trainer.client, batch)
        return allocations.most * min(most, EVALUATION_BATCH) // len(batch.y)

    def _batch(self, data: FederatedData) -> Batch:
        x, y, _ = next(iter(data.batches(self.largest, 1, 0)))
        return Batch(x, y, torch.tensor(0))


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
