"""Estimate of a run's main memory, before it starts."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from pfl_fast.data.federated import CHUNK_BYTES, EVALUATION_BATCH, FederatedData
from pfl_fast.engine.allocations import Allocations
from pfl_fast.engine.local.modules import bind, set_mode
from pfl_fast.engine.local.optimizer import StepSettings
from pfl_fast.engine.local.progress import SingleProgress
from pfl_fast.engine.local.runner import WHOLE
from pfl_fast.engine.local.single import SinglePhase, SingleRunner
from pfl_fast.engine.sampling import sample
from pfl_fast.engine.settings import RoundSettings
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.errors import PflFastError
from pfl_fast.methods.base import Batch, Method, Phase, Tensors

META = torch.device("meta")


class TooLarge(PflFastError):  # noqa: N818
    """A run does not fit into memory."""


@dataclass(frozen=True)
class Estimate:
    """Upper bound of the main memory of a run, in bytes.

    Attributes:
        program: resident memory of the process: Python, torch, this library.
        samples: arrays of the data set; the system can reclaim memory-mapped pages.
        client_state: stored tensors of all clients that may take part.
        server: server tensors, uploads of a round, and mixtures of them.
        training: tensors of the clients that train at the same time, with gradients, activations and cached values;
            copies adapted before a test.
    """

    program: int
    samples: int
    client_state: int
    server: int
    training: int

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(getattr(self, f.name) for f in fields(self))

    def __str__(self) -> str:
        parts = ", ".join(f"{f.name.replace('_', ' ')} {size(getattr(self, f.name))}" for f in fields(self))
        return f"about {size(self.total)} ({parts})"


def size(count: float) -> str:
    """Formats a number of bytes.

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
    tested: int,
    on_disk: bool,
    on_gpu: bool = False,
) -> Estimate:
    """Estimates the memory of a run without computing anything.

    ``copies`` clients train and ``tested`` clients are tested at the same time. With ``on_disk``, clients' state is in
    mapped files, which need no memory. With ``on_gpu``, the server and training are in a GPU's memory.
    """
    program = resident()
    cohort = sample(settings, data.clients, 1)
    client_state = state_bytes(part_table, data.clients, settings, on_disk)
    if on_gpu:
        return Estimate(program, data.bytes, client_state, server=0, training=0)
    sent = sum(e.value.nbytes for e in part_table.uploaded) + sum(e.value.nbytes for e in part_table.mixed)
    upload_bytes = sent * len(cohort.uploading)
    client = MetaClient(part_table, method, data, settings)
    own = sum(spec.value.nbytes for spec in part_table.specs)
    adapts = bool(method.before_test(2, "after_local") or method.before_test(2, "after_agg"))
    return Estimate(
        program=program,
        samples=data.bytes,
        client_state=client_state,
        server=2 * sum(t.nbytes for t in part_table.server_common.values()) + upload_bytes,
        training=copies * own + max(copies * client.step_bytes(), tested * (client.test_bytes() + adapts * own)),
    )


def state_bytes(part_table: PartTable, clients: int, settings: RoundSettings, on_disk: bool) -> int:
    """Returns the bytes of the stored tensors of all clients that may take part in a run."""
    ever = min(clients, len(sample(settings, clients, 1).training) * settings.rounds)
    return 0 if on_disk else ever * part_table.bytes_per_client()


class MetaClient:
    """The client with the most samples on the meta device, where tensors have shapes but no values.

    Models that cannot run there, such as those that read values of tensors, are counted without activations.
    """

    def __init__(self, part_table: PartTable, method: Method, data: FederatedData, settings: RoundSettings) -> None:
        self.part_table, self.method, self.data = part_table, method, data
        self.runner = SingleRunner(part_table, method, data, META)
        self.settings = StepSettings(settings.lr, settings.momentum, settings.weight_decay, settings.seed, round=1)
        client = int(data.train_sizes.argmax())
        self.sample = data.take(data.indices("train", client)[:1])[0][0]
        # Expanded zeros of the optimizer become dense when a client trains.
        self.tensors = {e.key: torch.empty(e.value.shape, dtype=e.value.dtype, device=META) for e in part_table.specs}

    def step_bytes(self) -> int:
        """Returns the largest memory of a step of any phase: batches, activations, gradients, cached values."""
        set_mode(self.runner.client, self.part_table.parts, training=True)
        return max(self._phase_bytes(phase) for phase in self.method.every_phase())

    def _phase_bytes(self, phase: Phase) -> int:
        names = self.runner.trained_names(phase)
        samples = self.samples(phase)
        batch = self.batch(samples if phase.whole else min(self.data.batch_size, samples))
        allocations = Allocations()
        try:
            with allocations:
                self._step(phase, batch, names)
            used = allocations.most
        except Exception:  # models may do anything
            used = sum(self.tensors[name].nbytes for name in names)
        tables = 0 if self.runner.recomputes_each_step(phase) else samples
        cached = tables * sum(t.nbytes // len(t) for t in batch.cached.values())
        # Batches are cut from chunks of the epoch.
        return used + cached + max(batch.x.nbytes, min(CHUNK_BYTES, samples * self.sample.nbytes))

    def samples(self, phase: Phase) -> int:
        """Returns the largest number of samples that a client visits in an epoch."""
        return int(self.runner.source(phase).train_sizes.max())

    def _step(self, phase: Phase, batch: Batch, names: list[str]) -> None:
        run = SinglePhase(self.runner, phase, phase.loss, [names], SingleProgress([0], META), dict(self.tensors), {})
        batch.cached = self.cached(phase, batch)
        run.step(batch, WHOLE, 0, self.settings.for_phase(phase)).run()

    def cached(self, phase: Phase, batch: Batch) -> Tensors:
        """Returns the values that a phase caches for the samples of a batch."""
        with torch.no_grad():
            return {name: cache.compute(self.runner.client, batch.x) for name, cache in phase.cached.items()}

    def test_bytes(self) -> int:
        """Returns the memory of the prediction for a batch of test samples."""
        bind(self.runner.client, self.tensors, set())
        set_mode(self.runner.client, self.part_table.parts, training=False)
        most = int(max(self.data.test_sizes.max(), self.data.validation_sizes.max()))
        batch = self.batch(min(most, EVALUATION_BATCH))
        allocations = Allocations()
        try:
            with torch.no_grad(), allocations:
                self.method.predict(self.runner.client, batch)
        except Exception:  # models may do anything
            return batch.x.nbytes
        return batch.x.nbytes + allocations.most

    def batch(self, count: int) -> Batch:
        """Returns ``count`` samples."""
        x = torch.empty((count, *self.sample.shape), dtype=self.sample.dtype, device=META)
        y, seed = (torch.empty(shape, dtype=torch.int64, device=META) for shape in ((count,), ()))
        return Batch(x, y, seed)


def resident() -> int:
    """Returns the resident memory of this process in bytes; 0 if the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def available(root: Path = Path("/")) -> int | None:
    """Returns the main memory that is still free, in bytes, within the limits of the container; None if unknown.

    Args:
        root: folder that holds ``proc`` and ``sys``.
    """
    free = _numbers(root / "proc/meminfo").get("MemAvailable:")
    bounds = [] if free is None else [free * 1024]
    return min([*bounds, *_free_in_cgroups(root), *_free_in_limits(root)], default=None)


def _free_in_limits(root: Path) -> Iterator[int]:
    """Yields limit minus usage of the limits of this process: address space (ulimit -v) and data (ulimit -d)."""
    sizes = _text(root / "proc/self/statm").split()
    for limit, used in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY and len(sizes) > used:
            yield max(most - int(sizes[used]) * resource.getpagesize(), 0)


def _free_in_cgroups(root: Path) -> Iterator[int]:
    """Yields limit minus usage of every control group of this process that has a limit, version 1 and 2."""
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            top, limit, usage, cache = mount, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top, cache = mount / "memory", "total_inactive_file"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # Parents limit their children. Inside a container, only the top may exist.
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
            if most.isdecimal() and used.isdecimal():
                reclaimable = _numbers(folder / "memory.stat").get(cache, 0)
                yield max(int(most) - int(used) + reclaimable, 0)
            if folder == top:
                break


def _numbers(file: Path) -> dict[str, int]:
    """First number of each line of a file, by the word before it."""
    lines = [line.split() for line in _text(file).splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def refuse_if_too_large(needed: Estimate) -> None:
    """Raises :class:`TooLarge` if a run needs more than the free memory; samples are not counted, see ``Estimate``."""
    _refuse(needed.total - needed.program - needed.samples, str(needed))


def refuse_too_many_clients(part_table: PartTable, clients: int, settings: RoundSettings, on_disk: bool) -> None:
    """Raises :class:`TooLarge` if the clients' state alone does not fit, before anything is allocated."""
    needed = state_bytes(part_table, clients, settings, on_disk)
    _refuse(needed, f"about {size(needed)} for the state of {clients} clients")


def _refuse(count: int, shown: str) -> None:
    free = available()
    if free is not None and count > free:
        raise TooLarge(
            f'this run needs {shown}, but only {size(free)} are free. state="disk" keeps clients\' state in files; '
            "fewer workers, a smaller stack, join_ratio or batch_size, or a smaller model need less"
        )
