"""Trains rounds on ghost GPUs and prints what they did as JSON; runs in a process with ``build.environment()``.

python -m tests.device.ghost.rounds '[{"method": "fedcp", "clients": 20, "steps": 3}]'
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from pfl_fast.data.synthetic import synthetic
from pfl_fast.engine.device_memory import estimate_device
from pfl_fast.engine.local import graphs
from pfl_fast.experiment import Experiment
from pfl_fast.ops import backend
from tests.device.ghost import convolutions
from tests.device.ghost.build import runtime_name
from tests.engine.small_experiments import partition_of

INPUTS = {"cnn": ((1, 28, 28), 10), "resnet18": ((3, 64, 64), 200)}  # shape and classes by model
BATCH, TESTS = 10, 20
PEAK = "peak bytes"
FIGURES = (
    *("launches", "kernels", "synchronisations", "copies on device", "copies to device", "copies to host"),
    *("bytes to device", "bytes to host", "bytes between devices", "changes of the device", PEAK),
)


def load_operators(library: str = "libghost_ops.so") -> None:
    """Loads the CUDA operators, by default with launchers that only count, in place of those compiled with nvcc."""
    torch.ops.load_library(Path(os.environ["GHOST"]) / library)
    backend._CUDA_KERNELS = frozenset(torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"))


def load_runtime() -> ctypes.CDLL:
    """Loads the ghost's runtime and the operators that only count."""
    torch.backends.cudnn.enabled = False  # there is no ghost of cuDNN
    runtime = ctypes.CDLL(runtime_name())
    runtime.ghost_counts.restype = ctypes.c_char_p
    load_operators()
    return runtime


def experiment(method: str, clients: int, steps: int, model: str = "cnn", **values: Any) -> Experiment:
    """Experiment whose clients have ``steps`` batches each."""
    partition = partition_of([BATCH * steps] * clients, TESTS)
    dataset = synthetic(clients * (BATCH * steps + TESTS), *INPUTS[model], seed=3)
    values = {"model": model, "batch_size": BATCH, "on_nan": "report", **values}
    return Experiment(method, dataset=dataset, partition=partition, **values)


def figures(runtime: ctypes.CDLL) -> dict[str, int]:
    """What happened since the last reset: what the host launched, and the kernels that ran, also those of graphs."""
    found = counts(runtime)
    launches = sum(number for what, number in found.items() if what.startswith("launch "))
    peak = sum(torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count()))
    kernels = launches - found.get("launch graph", 0) + found.get("nodes of graphs", 0)
    return {**{name: found.get(name, 0) for name in FIGURES}, "launches": launches, "kernels": kernels, PEAK: peak}


def counts(runtime: ctypes.CDLL) -> dict[str, int]:
    """Counts of the ghost since the last reset, by what happened."""
    return {what: int(n) for what, n in re.findall(r"(.+)\t(\d+)", runtime.ghost_counts().decode())}


def figures_per_step(runtime: ctypes.CDLL, running: Experiment) -> Callable[[], dict[str, float]]:
    """Reads the figures between two steps; returns a function that returns those of a step, without the first."""
    seen: list[dict[str, int]] = []

    def stop() -> bool:  # asked before each batch and after the last one
        seen.append(figures(runtime))
        return False

    running.round.executor.workers[0].trainer.stop = stop
    return lambda: {name: (seen[-1][name] - seen[1][name]) / (len(seen) - 2) for name in FIGURES if name != PEAK}


def main(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the result of each request, in order."""
    runtime = load_runtime()
    replaced = convolutions.install(runtime)
    native = backend._CUDA_KERNELS
    results = []
    for request in requests:
        backend._CUDA_KERNELS = native if request.pop("kernels", True) else frozenset()
        gc.collect()  # or the peak includes tensors of the request before
        torch.cuda.empty_cache()
        results.append(result(runtime, request))
    del replaced
    return results


def result(runtime: ctypes.CDLL, request: dict[str, Any]) -> dict[str, Any]:
    """Trains two rounds; returns the executor, the figures of the second, and the warnings and messages of both.

    The figures of a step are missing if there are fewer than three or several GPUs. The estimate is that of the memory
    of a GPU with all clients in one stack, and the data set.
    """
    counts_steps = request["steps"] > 2 and torch.cuda.device_count() == 1
    graphs.EAGER_STEPS = 1 if counts_steps else request["steps"] * 2  # captures in the first round, or none
    messages: list[str] = []
    with (
        warnings.catch_warnings(record=True) as caught,
        closing(experiment(rounds=2, log=messages.append, **request)) as running,
    ):
        warnings.simplefilter("always")
        rounds = running.rounds()
        next(rounds)
        per_step = figures_per_step(runtime, running)
        runtime.ghost_reset()
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
        next(rounds)
        found = figures(runtime)
        devices = [str(worker.device) for worker in running.round.executor.workers]
        texts = [str(warning.message) for warning in caught]
        needed = estimate_device(running.part_table, running.method, running.data, running.settings)
        return {
            "executor": running.round.executor.name,
            "devices": devices,
            "figures": found,
            "step": per_step() if counts_steps else None,
            "warnings": texts,
            "messages": messages,
            "estimate": needed.total(request["clients"]) + running.data.bytes,
        }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
