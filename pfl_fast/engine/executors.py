"""Executors: how clients run side by side. Every client sees the same batches, noise and steps under all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import nullcontext
from queue import SimpleQueue
from typing import ClassVar, TypeVar

import torch

from pfl_fast.engine.local.runner import Runner
from pfl_fast.engine.local.single import SingleRunner
from pfl_fast.engine.local.stacked import StackedRunner
from pfl_fast.engine.stopping import StopFlag
from pfl_fast.engine.worker import Worker
from pfl_fast.errors import ConfigError

Unit = TypeVar("Unit")
Result = TypeVar("Result")
TEST_STACK = 32  # most clients in one stack of a test, which may cover all clients of the run


class Executor:
    """Decides how many units run at once and where: by default one per worker, each in a thread.

    Args:
        devices: one or more devices.
        workers: number of threads on the CPU; 0: one per core.
        stack: most clients in one stack; 0: all clients of a worker.
        make_worker: returns a worker, given ``runner_class``, ``device`` and ``stop``.

    Attributes:
        name: name of the executor in settings and results.
        runner_class: runs the clients of one unit.
        stacks: True if the clients of a unit are one stack.
        workers: the workers, at least one.
        stop: set to end the run between two steps.
    """

    name: ClassVar[str]
    runner_class: ClassVar[type[Runner]] = SingleRunner
    stacks: ClassVar[bool] = False

    def __init__(
        self, devices: Sequence[torch.device], workers: int, stack: int, make_worker: Callable[..., Worker]
    ) -> None:
        self.stack = stack
        self.stop = StopFlag()
        self.workers = [
            make_worker(runner_class=self.runner_class, device=device, stop=self.stop.is_set)
            for device in self.places(devices, workers)
        ]
        on_cpu = sum(worker.device.type == "cpu" for worker in self.workers)
        self._cpu_threads = max(1, torch.get_num_threads() // on_cpu) if on_cpu > 1 else 0
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            self._idle.put(worker)
        self._pool = ThreadPoolExecutor(len(self.workers), "pfl-fast", initializer=self.start_thread)

    def places(self, devices: Sequence[torch.device], workers: int) -> Sequence[torch.device]:
        """Returns the device of each worker."""
        return devices

    def units(self, clients: Sequence[int]) -> list[list[int]]:
        """Splits clients, the most expensive first, into units that one worker trains at a time."""
        return [[client] for client in clients]

    def test_units(self, clients: Sequence[int]) -> list[list[int]]:
        """Splits clients into units that one worker tests at a time."""
        return self.units(clients)

    def on_idle_worker(self, work: Callable[[Worker, Unit], Result], unit: Unit) -> Result:
        """Calls ``work`` on a worker that is idle."""
        worker = self._idle.get()
        # Otherwise every operator on a GPU that is not the thread's current one would switch to it and back.
        device = torch.cuda.device(worker.device) if worker.device.type == "cuda" else nullcontext()
        try:
            with device:
                return work(worker, unit)
        finally:
            self._idle.put(worker)

    def start_thread(self) -> None:
        """Called at the start of every thread; workers on the CPU share its cores, each with threads of its own."""
        if self._cpu_threads:
            torch.set_num_threads(self._cpu_threads)

    def run(self, units: Sequence[Unit], work: Callable[[Worker, Unit], Result]) -> Iterator[tuple[Unit, Result]]:
        """Calls ``work`` for every unit on an idle worker; yields results as they arrive, raises the first error."""
        futures: dict[Future[Result], Unit] = {
            self._pool.submit(self.on_idle_worker, work, unit): unit for unit in units
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()
            wait(futures)

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()


class SequentialExecutor(Executor):
    """Runs one unit after another in the calling thread: the oracle of the others, and the easiest to debug."""

    name = "sequential"

    def run(self, units: Sequence[Unit], work: Callable[[Worker, Unit], Result]) -> Iterator[tuple[Unit, Result]]:
        """Calls ``work`` for every unit in order."""
        for unit in units:
            yield unit, self.on_idle_worker(work, unit)


class ThreadsExecutor(Executor):
    """Runs one client per thread, one thread per core on the CPU, or per GPU: the default on CPUs."""

    name = "threads"

    def places(self, devices: Sequence[torch.device], workers: int) -> Sequence[torch.device]:
        """Returns the CPU once per thread, or the GPUs."""
        self._on_cpu = devices[0].type == "cpu"
        if not self._on_cpu and workers not in (0, len(devices)):
            raise ConfigError(
                f"workers: executor threads trains one client at a time on each GPU, so {len(devices)}, got {workers}; "
                "executor batched trains many clients at a time on a GPU"
            )
        return [devices[0]] * (workers or os.cpu_count() or 1) if self._on_cpu else devices

    def start_thread(self) -> None:
        """Limits torch to one core: small steps run faster side by side than split over cores."""
        if self._on_cpu:
            torch.set_num_threads(1)


class BatchedExecutor(Executor):
    """Runs stacks of clients by ``torch.vmap``, one stack at a time on each device: the default on GPUs."""

    name = "batched"
    runner_class = StackedRunner
    stacks = True

    def units(self, clients: Sequence[int]) -> list[list[int]]:
        """Splits clients, the most expensive first, into one or more stacks per worker."""
        return self._stacks(clients, self.stack or len(clients) or 1)

    def test_units(self, clients: Sequence[int]) -> list[list[int]]:
        """Splits clients into stacks of at most ``TEST_STACK`` clients."""
        return self._stacks(clients, min(self.stack or TEST_STACK, TEST_STACK))

    def _stacks(self, clients: Sequence[int], size: int) -> list[list[int]]:
        count = len(self.workers)
        shards = [clients[i::count] for i in range(count)]  # clients are sorted by cost: dealing in turn is even
        return [list(shard[i : i + size]) for shard in shards for i in range(0, len(shard), size)]


EXECUTORS: dict[str, type[Executor]] = {
    executor.name: executor for executor in (SequentialExecutor, ThreadsExecutor, BatchedExecutor)
}


def choose_executor(name: str, devices: Sequence[torch.device], stack_problem: str | None) -> str:
    """Returns the name of an executor; ``"auto"`` is threads on the CPU and batched on GPUs.

    If clients cannot be stacked, ``"auto"`` is threads everywhere and ``"batched"`` raises.

    Args:
        name: name of an executor, or ``"auto"``.
        devices: one or more devices.
        stack_problem: why clients cannot be trained in one stack, or None.
    """
    if name == BatchedExecutor.name and stack_problem:
        raise ConfigError(f'executor: {stack_problem}; executor="threads" trains client by client')
    if name != "auto":
        return name
    return ThreadsExecutor.name if devices[0].type == "cpu" or stack_problem else BatchedExecutor.name
