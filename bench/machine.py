"""Description and peak speed of the machine that measures."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, sleep

import torch

from pfl_fast import ops

SIDE, VALUES, TRIES = 2048, 50_000_000, 7
SAMPLE, BUSY = 1.0, 0.1  # seconds in which other processes are noticed, and the share of the cores they may use


def machine() -> dict[str, object]:
    return {
        "cpu": processor(),
        "generation": generation(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "kernels": kernels(),
    }


def kernels() -> str:
    """Returns the instruction set of the native CPU kernels."""
    return torch.ops.pfl_fast.cpu_capability() if ops.NATIVE.available else "reference"


def processor() -> str:
    return cpuinfo("model name") or platform.processor()


def generation() -> str:
    """Returns family and model of the processor, which tell generations of the same name apart."""
    return f"family {cpuinfo('cpu family')}, model {cpuinfo('model')}" if cpuinfo("cpu family") else ""


def cpuinfo(key: str) -> str:
    """Returns a value of the first processor in /proc/cpuinfo, or an empty string."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.split("\t")[0] == key), "")


def heading() -> str:
    """Returns the processor with its generation, and the versions and instruction sets that measure."""
    family = f" ({generation()})" if generation() else ""
    threads, capability = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    return (
        f"{processor()}{family}, {threads} threads, torch {torch.__version__} ({capability}), CPU kernels {kernels()}."
    )


def slug() -> str:
    """Returns the base name of this machine's results file, for example ``amd-epyc-2``."""
    return re.sub(r"[^a-z0-9]+", "-", f"{processor() or 'cpu'} {os.cpu_count()}".lower()).strip("-")


def busy() -> str | None:
    """Returns a warning if other processes use the machine: a step split over cores waits for the slowest core."""
    before = cpu_times()
    sleep(SAMPLE)
    idle, total = (now - then for now, then in zip(cpu_times(), before, strict=True))
    used = 1 - idle / total if total else 0.0
    if used < BUSY:
        return None
    return f"other processes used {100 * used:.0f} % of the cores: the yardstick, which uses all of them, looks slower"


def cpu_times() -> tuple[int, int]:
    """Returns the idle and the total time of all cores since the start of the machine, zeros where it is not known."""
    file = Path("/proc/stat")
    times = [int(word) for word in file.read_text().split("\n", 1)[0].split()[1:9]] if file.exists() else [0] * 8
    return times[3] + times[4], sum(times)


def commit() -> str:
    """Returns the commit of the checkout, marked as dirty if files were changed."""
    root = Path(__file__).parents[1]
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def peaks(known: Mapping[str, float]) -> dict[str, float]:
    """Returns GFLOP/s of a matrix product and GB/s of a read and of a copy, the best of several tries on all cores.

    Better values in ``known`` are kept: other processes may slow the machine down.
    """
    a, b, c = (torch.randn(SIDE, SIDE) for _ in range(3))
    source, target = torch.ones(VALUES), torch.empty(VALUES)
    found = {
        "gemm_gflops": 2 * SIDE**3 / best(lambda: torch.mm(a, b, out=c)) / 1e9,
        "read_gbs": source.nbytes / best(source.sum) / 1e9,
        "copy_gbs": source.nbytes / best(lambda: target.copy_(source)) / 1e9,
    }
    return {name: max(value, known.get(name, 0.0)) for name, value in found.items()}


def best(function: Callable[[], object]) -> float:
    seconds = []
    for _ in range(TRIES):
        begin = perf_counter()
        function()
        seconds.append(perf_counter() - begin)
    return min(seconds)
