"""Runs operators with sanitizers: ``python -m tests.sanitize [address] [thread]``, by default both.

``address``: contract and drawn sizes of all operators with AddressSanitizer and UndefinedBehaviorSanitizer, on every
instruction set of the processor, then scratch memory of half the size, which they must report. ``thread``: rounds of
the threads executor with ThreadSanitizer, then a race that it must report.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import torch

from pfl_fast import ops
from tests.ops.test_instruction_sets import INSTRUCTION_SETS, KERNEL_TESTS
from tests.sanitize.library import environment, library

LOADED = "import torch; from pfl_fast import ops; print(ops.NATIVE.folder, torch.ops.pfl_fast.cpu_capability())"
PYTEST = [
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "--capture=sys",
]  # sanitizers write to the stderr of the process
# torch.compile starts a compiler, and tests/ops/test_instruction_sets.py processes of its own.
CONTRACT = [*PYTEST, "tests/ops", "--ignore", "tests/ops/test_instruction_sets.py", "-k", "not compile"]
KERNELS = [*PYTEST, "tests/ops/test_contract.py", "tests/ops/test_any_size.py", "-k", f"{KERNEL_TESTS} or any_size"]
ROUNDS = ["-m", "tests.sanitize.threads"]


def run(title: str, arguments: list[str], variables: dict[str, str], reports: str = "") -> bool:
    """Runs Python and returns True if it succeeds, or if it fails with the expected report."""
    print(f"== {title}", flush=True)
    start = time.monotonic()
    process = subprocess.run(
        [sys.executable, *arguments], env=variables, check=False, text=True, stderr=subprocess.PIPE if reports else None
    )
    passed = process.returncode != 0 and reports in process.stderr if reports else process.returncode == 0
    print(f"{'passed' if passed else 'FAILED'} in {time.monotonic() - start:.0f} s", flush=True)
    return passed


def address() -> list[bool]:
    """Returns whether each instruction set passes, and whether errors are found; the best one runs all tests."""
    compiled, best = library("address"), torch.ops.pfl_fast.cpu_capability()
    results = []
    for name in INSTRUCTION_SETS[: INSTRUCTION_SETS.index(best) + 1]:
        variables = environment("address", compiled, name)
        loaded = subprocess.run(
            [sys.executable, "-c", LOADED], env=variables, capture_output=True, text=True, check=True
        )
        assert loaded.stdout.split() == [str(compiled), name], loaded
        results.append(run(f"AddressSanitizer, UBSan: {name}", CONTRACT if name == best else KERNELS, variables))
    results.append(
        run("AddressSanitizer: scratch memory of half the size", [*PYTEST, "tests/sanitize"], {**os.environ})
    )
    return results


def thread() -> list[bool]:
    """Returns whether the threads executor has no race, and whether a race is found."""
    variables = environment("thread", library("thread"))
    workers = f"ThreadSanitizer: {2 * (os.cpu_count() or 1)} workers"
    return [
        run(workers, ROUNDS, variables),
        run("ThreadSanitizer: a race", [*ROUNDS, "race"], variables, "WARNING: ThreadSanitizer: data race"),
    ]


CHECKS = {"address": address, "thread": thread}

if __name__ == "__main__":
    assert ops.NATIVE.available, ops.NATIVE.problem
    results = [passed for name in sys.argv[1:] or CHECKS for passed in CHECKS[name]()]
    sys.exit(results.count(False))
