"""The processes that train one run together, as torchrun starts them: ranks.

Every rank runs the same rounds. Calls that exchange values are made by all ranks, in the same order; with one process
they return at once.
"""
# ruff: noqa: ARG002 - with one process, values are returned as they are

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from pfl_fast.engine.stopping import Interrupted
from pfl_fast.errors import ConfigError, PflFastError
from pfl_fast.transfer import pack, unpack

Result = TypeVar("Result")
Tensors = dict[str, Tensor]
TIMEOUT = "PFL_FAST_RANK_TIMEOUT"  # seconds that a rank waits for the others
ANSWER_SECONDS = 10.0  # until ranks of other hosts that do not answer count as ended


class RankFailed(PflFastError):  # noqa: N818
    """Another rank failed, or has ended."""


@dataclass(frozen=True)
class Failure:
    """Error of one rank, as the others receive it."""

    text: str
    exit_code: int
    interrupted: bool
    signal: int | None
    expected: bool

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Describes an error."""
        expected = isinstance(error, PflFastError)
        text = str(error) if expected else f"{type(error).__name__}: {error}"
        stopped = isinstance(error, Interrupted)
        signal = error.signal if isinstance(error, Interrupted) else None
        return cls(text, getattr(error, "exit_code", 1), stopped, signal, expected or stopped)

    def error(self, rank: int) -> Exception:
        """Returns the error that the other ranks raise."""
        if self.interrupted:
            stop = Interrupted()
            stop.signal = self.signal
            return stop
        found = RankFailed(f"rank {rank}: {self.text}")
        found.exit_code = self.exit_code
        return found


class Ranks:
    """One process.

    Attributes:
        rank: number of this process; rank 0 prints and writes.
        size: number of processes.
        local_rank: number of this process on its machine.
        local_size: number of processes on its machine.
        exchanged: last error that all ranks know.
        broken: True if the ranks cannot exchange values any more.
        speaker: rank that prints errors: the first that has not ended.
    """

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    exchanged: Exception | None = None
    broken = False
    speaker = 0

    def gather(self, work: Callable[[], Result]) -> list[Result]:
        """Calls ``work`` on every rank and returns the results of all; raises on all ranks if one raised."""
        return [work()]

    def together(self, work: Callable[[], Result]) -> Result:
        """Calls ``work`` on every rank and returns its own result; raises on all ranks if one raised."""
        return work()

    def lead(self, work: Callable[[], None], follow: Callable[[], object]) -> None:
        """Calls ``work`` on rank 0 only; the others call ``follow`` whenever it calls :meth:`ask`."""
        work()

    def ask(self) -> None:
        """Lets the other ranks call ``follow``, see :meth:`lead`."""

    def sum(self, tensors: Tensors) -> Tensors:
        """Returns the sums over all ranks, by name; one all-reduce per dtype."""
        return tensors

    def all_rows(self, block: Tensor, counts: Sequence[int]) -> Tensor:
        """Returns the rows of the blocks of all ranks, one rank after the other; ``counts`` are their numbers."""
        return block

    def broadcast(self, tensors: Tensors, source: int) -> Tensors:
        """Returns the tensors of rank ``source`` in main memory; the others give tensors of the same shapes."""
        return tensors

    def send(self, tensors: Tensors) -> None:
        """Sends tensors to rank 0."""

    def receive(self, like: Tensors, source: int) -> Tensors:
        """Returns what rank ``source`` sends, in main memory; ``like`` has names, shapes and dtypes."""
        return like

    def own_devices(self, devices: Sequence[torch.device]) -> list[torch.device]:
        """Returns the devices of this rank: the GPUs of a machine are dealt to its ranks."""
        return list(devices)

    def own_workers(self, workers: int, device: torch.device) -> int:
        """Returns the number of threads of this rank; 0: its executor's default."""
        return workers


class ProcessGroup(Ranks):
    """Several processes, joined by torch.distributed: gloo in main memory, NCCL between GPUs."""

    def __init__(self) -> None:
        seconds = timedelta(seconds=float(os.environ.get(TIMEOUT, "1800")))
        store, self.rank, self.size = next(rendezvous("env://", timeout=seconds))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._store = torch.distributed.distributed_c10d.PrefixStore("pfl_fast", store)
        self._store.set(f"process/{self.rank}", f"{socket.gethostname()} {os.getpid()}")
        gpus = torch.cuda.is_available()
        if gpus:
            torch.cuda.set_device(self.local_rank % torch.cuda.device_count())
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo", store=store, rank=self.rank, world_size=self.size, timeout=seconds
        )
        processes = [self._store.get(f"process/{rank}").decode().split() for rank in range(self.size)]
        self._processes = {rank: (host, pid) for rank, (host, pid) in enumerate(processes)}
        # Exchanges of objects and of tensors in main memory; None is the group of init_process_group.
        self._host: Any = dist.new_group(backend="gloo", timeout=seconds) if gpus else None
        atexit.register(dist.destroy_process_group)

    def gather(self, work: Callable[[], Result]) -> list[Result]:
        """Calls ``work`` on every rank and returns the results of all; raises on all ranks if one raised."""
        result, own = None, None
        try:
            result = work()
        except Exception as error:
            if error is self.exchanged or self.broken:
                raise
            own = error
        found: list[Any] = [None] * self.size
        mine = (result, None if own is None else Failure.of(own))
        self._call(lambda: dist.all_gather_object(found, mine, self._host))
        failures = {rank: failure for rank, (_, failure) in enumerate(found) if failure}
        if failures:
            self._raise(own, failures)
        return [result for result, _ in found]

    def _raise(self, own: Exception | None, failures: Mapping[int, Failure]) -> None:
        """Raises the rank's own error; else that of the first rank that failed, or was interrupted."""
        self.broken = not all(failure.expected for failure in failures.values())
        rank, cause = min(failures.items(), key=lambda item: (item[1].interrupted, item[0]))
        if own is None or (isinstance(own, Interrupted) and not cause.interrupted):
            own = cause.error(rank)
        self.exchanged = own
        raise own

    def together(self, work: Callable[[], Result]) -> Result:
        """Calls ``work`` on every rank and returns its own result; raises on all ranks if one raised."""
        results: list[Result] = []
        self.gather(lambda: results.append(work()))
        return results[0]

    def lead(self, work: Callable[[], None], follow: Callable[[], object]) -> None:
        """Calls ``work`` on rank 0 only; the others call ``follow`` whenever it calls :meth:`ask`."""

        def led() -> None:
            if self.rank == 0:
                try:
                    work()
                finally:
                    if not self.broken:
                        self._message("done")
            else:
                while self._message() == "follow":
                    follow()

        self.together(led)

    def ask(self) -> None:
        """Lets the other ranks call ``follow``, see :meth:`lead`."""
        self._message("follow")

    def _message(self, text: str = "") -> str:
        sent = [text]
        self._call(lambda: dist.broadcast_object_list(sent, src=0, group=self._host))
        return sent[0]

    def sum(self, tensors: Tensors) -> Tensors:
        """Returns the sums over all ranks, by name; one all-reduce per dtype."""
        sums: Tensors = {}
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors.values()):
            these = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
            flat = torch.cat([tensor.reshape(-1) for tensor in these.values()])
            self._call(partial(dist.all_reduce, flat))
            parts = flat.split([tensor.numel() for tensor in these.values()])
            sums.update({n: part.view(t.shape) for (n, t), part in zip(these.items(), parts, strict=True)})
        return {name: sums[name] for name in tensors}

    def all_rows(self, block: Tensor, counts: Sequence[int]) -> Tensor:
        """Returns the rows of the blocks of all ranks, one rank after the other; ``counts`` are their numbers."""
        padded = block.new_zeros((max(counts), *block.shape[1:]))  # ranks send equally many rows
        padded[: len(block)] = block
        found = [torch.empty_like(padded) for _ in range(self.size)]
        if padded.numel():
            self._call(lambda: dist.all_gather(found, padded))
        return torch.cat([rows[:count] for rows, count in zip(found, counts, strict=True)])

    def broadcast(self, tensors: Tensors, source: int) -> Tensors:
        """Returns the tensors of rank ``source`` in main memory; the others give tensors of the same shapes."""
        packed = pack(tensors.values())
        self._call(lambda: dist.broadcast(packed, src=source, group=self._host))
        return unpack(packed, tensors)

    def send(self, tensors: Tensors) -> None:
        """Sends tensors to rank 0."""
        packed = pack(tensors.values())
        self._call(lambda: dist.send(packed, dst=0, group=self._host))

    def receive(self, like: Tensors, source: int) -> Tensors:
        """Returns what rank ``source`` sends, in main memory; ``like`` has names, shapes and dtypes."""
        packed = torch.empty(sum(tensor.nbytes for tensor in like.values()), dtype=torch.uint8)
        self._call(lambda: dist.recv(packed, src=source, group=self._host))
        return unpack(packed, like)

    def own_devices(self, devices: Sequence[torch.device]) -> list[torch.device]:
        """Returns the devices of this rank: the GPUs of a machine are dealt to its ranks."""
        if devices[0].type == "cpu":
            return list(devices)
        own = list(devices[self.local_rank :: self.local_size])
        if not own:
            raise ConfigError(
                f"device: {self.local_size} ranks on this machine, but {len(devices)} GPUs; torchrun --nproc-per-node "
                f"{len(devices)} starts one rank per GPU"
            )
        return own

    def own_workers(self, workers: int, device: torch.device) -> int:
        """Returns the number of threads of this rank; the cores of a machine are shared by its ranks."""
        return workers or (max(1, (os.cpu_count() or 1) // self.local_size) if device.type == "cpu" else 0)

    def _call(self, exchange: Callable[[], Any]) -> None:
        """Calls an exchange of torch.distributed; raises with the ranks that have ended if it fails."""
        try:
            exchange()
        except (RuntimeError, ValueError) as error:
            self.broken = True
            atexit.unregister(dist.destroy_process_group)  # it may wait for them
            self.exchanged = RankFailed(self._who_ended(error))
            raise self.exchanged from None

    def _who_ended(self, error: Exception) -> str:
        ended = self._ended()
        self.speaker = min({*range(self.size)} - {*ended})
        remedy = "`pfl-fast resume`, with any number of ranks, continues the run from its last checkpoint"
        if not ended:
            return f"the exchange between ranks failed ({error}); {remedy}"
        named = [f"rank {rank} (process {pid} on {host})" for rank, (host, pid) in ended.items()]
        known = all(host == socket.gethostname() for host, _ in ended.values())
        return f"{', '.join(named)} {'has ended' if known else 'does not answer'}; {remedy}"

    def _ended(self) -> dict[int, tuple[str, str]]:
        """Returns host and process of the ranks that have ended; of other hosts, of those that do not answer."""
        deadline = monotonic() + ANSWER_SECONDS
        silent = {rank: process for rank, process in self._processes.items() if rank != self.rank}
        while silent and monotonic() < deadline:
            here = {r: p for r, p in silent.items() if p[0] == socket.gethostname() and has_ended(p[1])}
            if here:
                return here
            try:
                self._store.set(f"waits/{self.rank}", "")
                silent = {rank: p for rank, p in silent.items() if not self._store.check([f"waits/{rank}"])}
            except RuntimeError:  # rank 0 keeps the store, unless torchrun does
                return {0: self._processes[0]}
            sleep(0.1)
        return silent


def has_ended(pid: str) -> bool:
    """Returns whether a process of this machine has ended; a process that its parent has not collected yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True


def started_by_torchrun() -> bool:
    """Returns whether this process is one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ and "MASTER_ADDR" in os.environ


@cache
def current_ranks() -> Ranks:
    """Returns the ranks of this process; the first call waits until all have started."""
    return ProcessGroup() if started_by_torchrun() else Ranks()
