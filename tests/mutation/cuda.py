"""Checks of a CUDA kernel under emulation: values and deadlocks under several schedules, ASan and UBSan, TSan."""

from __future__ import annotations

from pathlib import Path

from tests.emulation.harness import EmulationError, Emulator
from tests.emulation.kernels import CASES

SEEDS = {"plain": range(5), "asan": range(2), "tsan": range(2)}


def passes(kernel: Path, source: Path, variant: str) -> bool | None:
    """Returns whether all cases pass with ``source`` in place of the kernel, or None if it does not compile.

    Files are written next to ``source``.
    """
    cases = next(cases for cases in CASES if kernel.parent.name == cases.OPERATOR)
    try:
        emulator = Emulator(variant, [source], source.parent)
    except EmulationError:
        return None
    batches = [cases.CASES] if variant != "plain" else [[case] for case in cases.CASES]
    try:
        for batch in batches:
            problems = [cases.Problem(case, seed) for case in batch for seed in SEEDS[variant]]
            emulator.run([call for problem in problems for call in problem.calls])
            for problem in problems:
                problem.check()
    except (AssertionError, EmulationError):
        return False
    return True
