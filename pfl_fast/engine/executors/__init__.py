"""Executors: how clients run side by side. Every client sees the same batches, noise and steps under all of them."""

from pfl_fast.engine.executors.base import Executor
from pfl_fast.engine.executors.batched import BatchedExecutor
from pfl_fast.engine.executors.sequential import SequentialExecutor
from pfl_fast.engine.executors.threads import ThreadsExecutor

EXECUTORS: dict[str, type[Executor]] = {
    executor.name: executor for executor in (SequentialExecutor, ThreadsExecutor, BatchedExecutor)
}

__all__ = ["EXECUTORS", "Executor"]
