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
from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import Method

EXECUTORS: dict[str, type[Executor]] = {
    executor.name: executor for executor in (SequentialExecutor, ThreadsExecutor, BatchedExecutor)
}

__all__ = ["EXECUTORS", "Executor", "choose_executor", "make_executor"]


def choose_executor(name: str, devices: Sequence[torch.device], stack_problem: str | None) -> str:
    """Returns the name of an executor; ``"auto"`` is threads on the CPU and batched on GPUs.

    If clients cannot be stacked, ``"auto"`` is threads everywhere and ``"batched"`` raises.

    Args:
        name: name of an executor, or ``"auto"``.
        devices: one or more devices.
        stack_problem: why clients cannot be trained in one stack, or None.
    """
    if name == BatchedExecutor.name and stack_problem:
        raise ConfigError(f"executor: {stack_problem}; --executor threads trains client by client")
    if name != "auto":
        return name
    return ThreadsExecutor.name if devices[0].type == "cpu" or stack_problem else BatchedExecutor.name


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
    """Returns the executor ``name``."""
    make_worker = partial(Worker, part_table=part_table, method=method, data=data, metrics=metrics)
    return EXECUTORS[name](devices, workers, stack, make_worker)
