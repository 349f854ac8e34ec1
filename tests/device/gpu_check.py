"""Runs the tests that matter on a machine with a GPU, measures, and writes gpu-report.md: ``make gpu-check``."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter

import torch

from pfl_fast import __version__, ops
from pfl_fast.data.synthetic import synthetic
from pfl_fast.engine.device_memory import estimate_device
from pfl_fast.experiment import Experiment
from pfl_fast.nn.conv_relu_pool import by_convolution, by_product
from pfl_fast.ops import backend
from tests.engine.small_experiments import partition_of

REPORT = Path("gpu-report.md")
TESTS = ("tests/ops/test_contract.py", "tests/engine/test_executors.py", "tests/methods")
SECONDS = 200  # of five minutes, for the tests
RUNS = {
    "FedAvg, CNN": ("fedavg", "cnn", (1, 28, 28), 10),
    "FedCP, CNN": ("fedcp", "cnn", (1, 28, 28), 10),
    "FedCP, ResNet-18": ("fedcp", "resnet18", (3, 64, 64), 200),
}
CLIENTS, STEPS, BATCH = 20, 10, 10
# Channels, outputs and side of the convolutions of the CNN.
CONVOLUTIONS = {"conv1": (1, 32, 28), "conv2": (32, 64, 12)}


def machine() -> list[str]:
    """Lines about the GPU and the software."""
    device = torch.cuda.get_device_properties(0)
    kernels = "with CUDA kernels" if backend.has_kernel("sgd_", "cuda") else f"without ({ops.NATIVE.cuda_problem})"
    return [
        f"- {torch.cuda.device_count()} x {device.name}, {device.total_memory / 2**30:.1f} GiB, "
        f"compute capability {device.major}.{device.minor}",
        f"- torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}",
        f"- pfl-fast {__version__}, {kernels}",
    ]


def run_tests() -> tuple[bool, list[str]]:
    """Whether the tests marked ``cuda`` pass, and the end of pytest's output."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", "--maxfail=20", *TESTS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        return False, [*output.splitlines()[-30:], f"stopped after {SECONDS} s"]
    return done.returncode == 0, done.stdout.splitlines()[-40:]


def synchronize(device: torch.device) -> None:
    """Waits for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], object], device: torch.device, times: int = 10) -> float:
    """Median time of ``call``, after two calls that are not measured."""
    found = []
    for _ in range(times + 2):
        synchronize(device)
        begin = perf_counter()
        call()
        synchronize(device)
        found.append(perf_counter() - begin)
    return sorted(found[2:])[times // 2]


def convolutions(device: torch.device, clients: int = CLIENTS) -> list[str]:
    """A table: forward and backward of the CNN's layers for a stack, by kernel, batched product and convolution."""
    ways = {
        "kernel": ops.conv_relu_pool,
        "product": torch.vmap(by_product, in_dims=(0, 0, 0, None)),
        "convolution": torch.vmap(by_convolution, in_dims=(0, 0, 0, None)),
    }
    lines = ["| layer | " + " | ".join(f"{way}, ms" for way in ways) + " |", "| --- | --- | --- | --- |"]
    for name, (channels, outputs, side) in CONVOLUTIONS.items():
        shapes = [(clients, BATCH, channels, side, side), (clients, outputs, channels, 5, 5), (clients, outputs)]
        inputs = [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]
        cells = []
        for compute in ways.values():

            def step(compute: Callable[..., torch.Tensor] = compute, inputs: list[torch.Tensor] = inputs) -> object:
                return torch.autograd.grad(compute(*inputs, 0).sum(), inputs)

            cells.append(f"{1e3 * seconds(step, device):.3f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def rounds(device: torch.device, names: tuple[str, ...] = tuple(RUNS), clients: int = CLIENTS) -> list[str]:
    """A table: seconds of a round of one stack, and the peak of memory with its estimate."""
    lines = [
        "| run | training, ms per step | round, s | peak, MiB | estimate, MiB |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in names:
        method, model, shape, classes = RUNS[name]
        partition = partition_of([BATCH * STEPS] * clients, BATCH)
        dataset = synthetic(clients * BATCH * (STEPS + 1), shape, classes, seed=3)
        values = {"batch_size": BATCH, "rounds": 3, "executor": "batched", "lr": 0.01, "log": lambda _: None}
        running = Experiment(method, dataset=dataset, partition=partition, model=model, device=str(device), **values)
        with closing(running):
            best, local, peak = float("inf"), float("inf"), 0
            for record in running.rounds():
                best = min(best, record["seconds"])
                local = min(local, record["seconds_by_part"]["local"])
                peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
            needed = estimate_device(running.part_table, running.method, running.data, running.settings, device.type)
        estimate = needed.total(clients) + running.data.bytes
        lines.append(f"| {name} | {1e3 * local / STEPS:.2f} | {best:.2f} | {peak >> 20} | {estimate >> 20} |")
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
    return lines


def report() -> bool:
    """Writes the report; returns whether the tests pass."""
    device = torch.device("cuda")
    passed, output = run_tests()
    text = ["# pfl-fast on a GPU", "", *machine(), "", f"## Tests: {'passed' if passed else 'FAILED'}", ""]
    text += ["```", *output, "```", "", f"## Rounds of {CLIENTS} clients in one stack, {STEPS} steps", ""]
    text += [*rounds(device), "", f"## Convolutions of {CLIENTS} clients, forward and backward", ""]
    text += [*convolutions(device), ""]
    REPORT.write_text("\n".join(text))
    return passed


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print(
            f"make gpu-check needs a GPU, and there is none: torch {torch.__version__} (CUDA {torch.version.cuda}) "
            "finds no device. Nothing was tested or measured. pfl-fast doctor shows what is missing.",
            file=sys.stderr,
        )
        sys.exit(2)
    succeeded = report()
    print(f"{REPORT}: {'the tests pass' if succeeded else 'tests FAILED'}; please send this file")
    sys.exit(not succeeded)
