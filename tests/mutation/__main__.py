"""Mutation testing of the kernels: measures how many faults their tests detect.

Each rule of tests/mutation/rules.py is applied to each match in each kernel, one at a time. A mutant of a CPU kernel is
caught if a test of its operator that compares values fails, without or with ASan and UBSan; a mutant of a CUDA kernel,
if it fails under emulation: values and deadlocks under several schedules, ASan and UBSan, TSan. Mutants that do not
compile are counted apart; mutants that cannot change results are listed in tests/mutation/equivalent.py with a reason.

    make mutants                                 all mutants of all kernels, hours
    make mutants KERNEL=mix                      the kernels of one operator
    make mutants KERNEL=mix/cpu_kernel.cpp       one kernel
    make mutants SAMPLE=12 WRITE=1               at most 12 mutants per kernel; replaces the rows of bench/mutants.md
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue

from tests.emulation.harness import CSRC
from tests.mutation import table
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.rules import Mutant, mutants_of, sample_of
from tests.mutation.worker import INVALID, PASSED, Worker

PROCESSES = len(os.sched_getaffinity(0))
Team = dict[str, Worker]  # a worker for each variant of the checks, in the order of their cost


def kernels() -> dict[str, Path]:
    """Returns the files of all kernels by name, for example ``mix/cpu_kernel.cpp``."""
    patterns = ("ops/*/cpu*_kernel.cpp", "ops/*/cuda_kernel.cu", "cpu/simd/*_kernel.cpp")
    files = sorted(file for pattern in patterns for file in CSRC.glob(pattern))
    return {f"{file.parent.name}/{file.name}": file for file in files}


@contextmanager
def team_for(kernel: Path) -> Iterator[Team]:
    if kernel.suffix == ".cu":
        team = dict.fromkeys(("plain", "asan", "tsan"), Worker("tests.mutation.cuda"))
    else:
        team = {"plain": Worker("tests.mutation.cpu"), "asan": Worker("tests.mutation.cpu", sanitized=True)}
    try:
        yield team
    finally:
        for worker in set(team.values()):
            worker.close()


def limits(kernel: Path, team: Team) -> dict[str, int]:
    """Checks the kernel itself; returns the CPU seconds of each variant after which a mutant counts as hanging."""
    seconds = {}
    for variant, worker in team.items():
        code, used = worker.check(kernel, kernel.read_text(), variant)
        if code != PASSED:
            sys.exit(f"{kernel} fails under {variant} without a mutation: fix the kernel first")
        seconds[variant] = 5 + 2 * round(used)
    return seconds


def verdict_on(kernel: Path, mutant: Mutant, team: Team, seconds: dict[str, int]) -> tuple[str, str]:
    """Returns a verdict of the table and its detail: the variant that caught the mutant, or why it is equivalent."""
    for variant, worker in team.items():
        code, _ = worker.check(kernel, mutant.text, variant, seconds[variant])
        if code != PASSED:
            return (table.INVALID, "") if code == INVALID else (table.CAUGHT, variant)
    listed = EQUIVALENT.get(f"{kernel.parent.name}/{kernel.name}", {})
    reason = next((reason for part, reason in listed.items() if part in str(mutant)), None)
    return (table.EQUIVALENT, reason) if reason else (table.SURVIVED, "")


def examine(name: str, size: int | None) -> table.Row:
    """Prints the verdict on each mutant of a kernel and returns the kernel's row of the table."""
    kernel = kernels()[name]
    found = mutants_of(kernel.read_text())
    chosen = sample_of(found, len(found) if size is None else size, name)
    counts, reasons = dict.fromkeys(table.VERDICTS, 0), set()
    start = time.monotonic()
    with ExitStack() as stack, ThreadPoolExecutor(PROCESSES) as pool:
        idle: SimpleQueue[Team] = SimpleQueue()
        for _ in range(PROCESSES):
            idle.put(stack.enter_context(team_for(kernel)))
        seconds = limits(kernel, first := idle.get())
        idle.put(first)

        def judge(mutant: Mutant) -> tuple[str, str]:
            team = idle.get()
            try:
                return verdict_on(kernel, mutant, team, seconds)
            finally:
                idle.put(team)

        for mutant, (verdict, detail) in zip(chosen, pool.map(judge, chosen), strict=True):
            counts[verdict] += 1
            reasons |= {detail} if verdict == table.EQUIVALENT else set()
            label = f"caught by {detail}" if verdict == table.CAUGHT else verdict
            print(f"{label:16} {name}:{mutant.line}  {mutant}", flush=True)
    print(f"{name}: {(time.monotonic() - start) / len(chosen):.1f} s per mutant", flush=True)
    return table.Row(name, len(found), counts, sorted(reasons))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", nargs="?", default="", help="an operator, or one file of its kernels")
    parser.add_argument("--sample", type=int, metavar="N", help="try at most N mutants of each kernel")
    parser.add_argument("--write", action="store_true", help=f"replace the kernels' rows of bench/{table.REPORT.name}")
    options = parser.parse_args()
    chosen = [name for name in kernels() if options.kernel in ("", name, name.partition("/")[0])]
    if not chosen:
        sys.exit(f"no kernel {options.kernel!r}: choose from {list(kernels())}")
    rows = []
    for name in chosen:
        rows.append(examine(name, options.sample))
        if options.write:
            table.update(table.REPORT, rows, list(kernels()))
    print(table.render(rows))
    sys.exit(any(row.verdicts[table.SURVIVED] for row in rows))


if __name__ == "__main__":
    main()
