"""Runs the operator tests with sanitizers: ``python -m tests.sanitize [address|thread ...]``.

``address``: contract and drawn sizes of all operators with AddressSanitizer and UndefinedBehaviorSanitizer, on every
instruction set of the processor. ``thread``: rounds of the threads executor with ThreadSanitizer.
"""

from __future__ import annotations

import subprocess
import sys
import time

import torch

from pfl_fast import ops
from tests.ops.test_instruction_sets import INSTRUCTION_SETS, KERNEL_TESTS
from tests.sanitize.library import environment, library

PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
# torch.compile starts a compiler; test_instruction_sets starts processes of its own.
CONTRACT = ["tests/ops", "--ignore", "tests/ops/test_instruction_sets.py", "-k", "not compile"]


def runs(sanitizer: str) -> list[tuple[str, list[str]]]:
    """Returns instruction sets with the arguments of Python."""
    if sanitizer == "thread":
        return [("", ["-m", "tests.sanitize.threads"])]
    best = torch.ops.pfl_fast.cpu_capability()
    older = INSTRUCTION_SETS[: INSTRUCTION_SETS.index(best)]
    kernels = ["tests/ops/test_contract.py", "tests/ops/test_any_size.py", "-k", f"{KERNEL_TESTS} or any_size"]
    return [(best, [*PYTEST, *CONTRACT]), *[(name, [*PYTEST, *kernels]) for name in older]]


def main(sanitizers: list[str]) -> int:
    """Returns the number of runs that failed."""
    failed = 0
    assert ops.NATIVE.available, ops.NATIVE.problem
    for sanitizer in sanitizers or ["address", "thread"]:
        compiled = library(sanitizer)
        for instruction_set, arguments in runs(sanitizer):
            print(f"== {sanitizer} {instruction_set}", flush=True)
            start = time.monotonic()
            variables = environment(sanitizer, compiled, instruction_set)
            code = subprocess.run([sys.executable, *arguments], env=variables, check=False).returncode
            print(f"{'failed' if code else 'passed'} in {time.monotonic() - start:.0f} s", flush=True)
            failed += code != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
