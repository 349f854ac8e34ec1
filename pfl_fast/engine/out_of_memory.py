"""What happens when memory is exhausted: on GPUs half the stack, and an error with the remedies in the end."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from pfl_fast.engine.executors import Executor
from pfl_fast.engine.worker import Worker
from pfl_fast.errors import PflFastError, is_out_of_memory, machine_problem

Row = TypeVar("Row")


class OutOfMemory(PflFastError):  # noqa: N818
    """The memory of a GPU, or main memory, is exhausted."""


@dataclass(frozen=True)
class InHalves(Generic[Row]):
    """Does the work for a unit of clients, in two halves if the GPU's memory is exhausted, and so on.

    Results do not depend on the size of a stack.

    Attributes:
        work: returns one row for each client of a unit.
        executor: later units get the size that worked.
        done: rows of clients that must not be worked on again.
        log: receives a message about a smaller stack.
    """

    work: Callable[[Worker, list[int]], list[Row]]
    executor: Executor
    done: Mapping[int, Row]
    log: Callable[[str], None]

    def __call__(self, worker: Worker, unit: list[int]) -> list[Row]:
        """Returns the rows of the clients of a unit."""
        try:
            return self.work(worker, unit)
        except torch.OutOfMemoryError as error:
            freed = worker.trainer.steps.free()  # the same stack may fit without CUDA graphs
            if len(unit) == 1 and not freed:
                raise OutOfMemory(message(worker.device, error, unit)) from None
        # Outside of the handler, the failed attempt's tensors are free.
        rows = {client: self.done[client] for client in unit if client in self.done}
        rest = [client for client in unit if client not in rows]
        half = len(unit) if freed else max(1, len(unit) // 2)
        self._shrink(worker, len(unit), half)
        for first in range(0, len(rest), half):
            clients = rest[first : first + half]
            rows.update(zip(clients, self(worker, clients), strict=True))
        return [rows[client] for client in unit]

    def _shrink(self, worker: Worker, failed: int, half: int) -> None:
        worker.runner.free_scratch()
        gc.collect()
        torch.cuda.empty_cache()
        if half < failed and (not self.executor.stack or self.executor.stack > half):
            self.executor.stack = half
            self.log(
                f"{worker.device} has too little memory for a stack of {failed} clients; continuing with stacks of "
                f"{half}. stack={half} starts with them"
            )


def message(device: object, error: Exception, unit: list[int] | None = None) -> str:
    """Returns the message about memory that is exhausted, in the work for ``unit`` or elsewhere."""
    where = f"for client {unit[0]} alone" if unit else "besides the clients' training"
    tried = re.search(r"Tried to allocate [\d.]+ \w+", str(error))
    remedy = "" if unit else "a smaller stack leaves more; "
    return (
        f"{device} has too little memory {where}{f' ({tried[0]})' if tried else ''}; {remedy}a smaller batch_size, "
        'image_size or model needs less, and device="cpu" uses main memory'
    )


@contextmanager
def explained(device: torch.device) -> Iterator[None]:
    """Turns errors about exhausted memory of ``device``, or main memory, into :class:`OutOfMemory`."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(message(device, error)) from None
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise OutOfMemory(str(machine_problem(error))) from None
        raise
