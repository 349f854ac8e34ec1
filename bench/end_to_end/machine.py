"""Where it was measured, and what that machine can do at most."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch

from pfl_fast import ops

SIDE, VALUES, TRIES = 2048, 50_000_000, 7


def machine() -> dict[str, object]:
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "kernels": torch.ops.pfl_fast.cpu_capability() if ops.NATIVE.available else "reference",
    }


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def slug() -> str:
    """The name of this machine's file: ``amd-epyc-2``."""
    return re.sub(r"[^a-z0-9]+", "-", f"{processor() or 'cpu'} {os.cpu_count()}".lower()).strip("-")


def commit() -> str:
    """The checkout's, with a mark if something in it was changed since."""
    root = Path(__file__).parents[2]
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def peaks() -> dict[str, float]:
    """The best of several tries, with all cores: GFLOP/s of a matrix product, GB/s of a read and of a copy."""
    a, b, c = (torch.randn(SIDE, SIDE) for _ in range(3))
    source, target = torch.ones(VALUES), torch.empty(VALUES)
    return {
        "gemm_gflops": 2 * SIDE**3 / best(lambda: torch.mm(a, b, out=c)) / 1e9,
        "read_gbs": source.nbytes / best(source.sum) / 1e9,
        "copy_gbs": source.nbytes / best(lambda: target.copy_(source)) / 1e9,
    }


def best(function: Callable[[], object]) -> float:
    seconds = []
    for _ in range(TRIES):
        begin = perf_counter()
        function()
        seconds.append(perf_counter() - begin)
    return min(seconds)
