"""Executors: how clients run side by side. Every client sees the same batches, noise and steps under all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.executors.base import Executor
from pfl_fast.engine.executors.batched import BatchedExecutor
from pfl_fast.engine.executors.sequential import SequentialExecutor
from pfl_fast.engine.executors.threads import ThreadsExecutor
from pfl_fast.engine.results.metrics import Metric
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.engine.worker import Worker
from pfl_fast.methods.base import Method

EXECUTORS: dict[str, type[Executor]] = {
    executor.name: executor for executor in (SequentialExecutor, ThreadsExecutor, BatchedExecutor)
}

__all__ = ["EXECUTORS", "Executor", "make_executor"]


def make_executor(
    name: str,
    devices: Sequence[torch.device],
    workers: int,
    stack: int,
    part_table: PartTable,
    method: Method,
    data: FederatedData,
    metrics: Mapping[str, Metric],
) -> Executor:
    """Returns the executor ``name``; ``"auto"`` is threads on the CPU and batched on GPUs."""
    if name == "auto":
        name = ThreadsExecutor.name if devices[0].type == "cpu" else BatchedExecutor.name
    make_worker = partial(Worker, part_table=part_table, method=method, data=data, metrics=metrics)
    return EXECUTORS[name](devices, workers, stack, make_worker)
