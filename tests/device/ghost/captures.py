"""CUDA graphs of the steps of every method, and of steps that cannot be captured; prints what happened as JSON.

python -m tests.device.ghost.captures    # in a process with build.environment()
"""

from __future__ import annotations

import ctypes
import json
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pfl_fast.engine.local import graphs
from pfl_fast.methods import METHODS
from pfl_fast.methods.base import Batch, Client, Phase, Tensors
from pfl_fast.methods.fedavg import FedAvg
from tests.device.ghost import convolutions, rounds
from tests.engine import small_experiments as small
from tests.methods.residual import residual


class MakesTensor(FedAvg):
    """Its loss copies a number from the host, which a capture refuses."""

    title = "a number from the host"

    def loss(self, client: Client, batch: Batch) -> tuple[Tensor, Tensors]:
        loss, recorded = super().loss(client, batch)
        return loss * torch.tensor(2.0, device=batch.y.device), recorded


class Anneals(FedAvg):
    """Its loss contains a number that changes in every round."""

    title = "a number of the round"
    tau = 1.0

    def phases(self, round: int) -> list[Phase]:
        self.tau = 1.0 / round
        return super().phases(round)

    def loss(self, client: Client, batch: Batch) -> tuple[Tensor, Tensors]:
        loss, recorded = super().loss(client, batch)
        return loss * self.tau, recorded


class Messages(logging.Handler):
    """Collects messages."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Adds a message."""
        self.texts.append(record.getMessage())


def capture(method: Any, runtime: ctypes.CDLL, **values: Any) -> dict[str, Any]:
    """Trains rounds with captured steps; returns messages, the number of graphs, replays and synchronisations."""
    handler = Messages()
    graphs.LOGGER.addHandler(handler)
    runtime.ghost_reset()
    values = {"device": "cuda:0", "executor": "batched", "on_nan": "report", "rounds": 1, "sizes": (10, 10), **values}
    try:
        with small.trained(method, dtype="float32", log=lambda _: None, **values) as running:
            steps = running.round.executor.workers[0].trainer.steps
            kept = list(steps.graphs.values()) if isinstance(steps, graphs.Graphs) else []
    finally:
        graphs.LOGGER.removeHandler(handler)
    counts = rounds.counts(runtime)
    return {
        "messages": sorted(set(handler.texts)),
        "graphs": len([graph for graph in kept if graph]),
        "eager": len([graph for graph in kept if not graph]),
        "replays": counts.get("launch graph", 0),
    }


def fails_on(function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """A function that raises an error after it did its work."""

    def failing(*arguments: Any) -> Any:
        function(*arguments)
        raise error

    return failing


def main() -> dict[str, Any]:
    """Returns what happened: of every method by name, and in other cases."""
    torch.set_num_threads(1)
    runtime = rounds.load_runtime()
    replaced = convolutions.install(runtime)
    graphs.LOGGER.setLevel(logging.DEBUG)
    graphs.EAGER_STEPS = 0
    found: dict[str, Any] = {"methods": {}}
    for name in METHODS:
        model = {"model": residual(squeeze=True)} if name.startswith("partialfed") else {}
        found["methods"][name] = capture(name, runtime, **model)
    found["host"] = capture(MakesTensor, runtime)
    found["off"] = capture("fedavg", runtime, capture="off")
    found["one by one"] = capture("fedavg", runtime, executor="sequential")
    found["anneals"] = capture(Anneals, runtime, rounds=3)
    found["learning rate"] = capture("fedavg", runtime, rounds=3, lr_decay=0.9)
    found["same round"] = capture("fedavg", runtime, rounds=3)
    right = graphs.movements
    graphs.movements = lambda *_: [torch.rand(2, device="cpu")]
    found["other results"] = capture("fedavg", runtime)
    graphs.movements = right
    begin = torch.cuda.CUDAGraph.replay
    torch.cuda.CUDAGraph.replay = fails_on(begin, torch.OutOfMemoryError("no memory"))
    found["memory"] = capture("fedavg", runtime)
    torch.cuda.CUDAGraph.replay = begin
    del replaced
    return found


if __name__ == "__main__":
    print(json.dumps(main()))
