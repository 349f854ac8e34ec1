"""Mutation testing of the CUDA kernels: what is the emulation worth?

Every rule below is applied to every place it fits in every kernel, one at a time. A mutant is caught when some rung of
the ladder (does not compile, wrong values or deadlock under several schedules, ASan+UBSan, TSan) objects. Mutants that
cannot change behaviour are listed by the kernel's cases with the reason, and are expected to survive.

    make mutants
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from tests.emulation.harness import CSRC, EmulationError, Emulator
from tests.emulation.kernels import CASES

RULES = [
    ("remove a barrier", r"__syncthreads\(\);", ";"),
    ("drop an atomic", r"atomicAdd\((reinterpret_cast<[^>]*>\([^;]*?\)),\s*([^;]*)\);", r"*(\1) += \2;"),
    ("off by one", r" < ", " <= "),
    ("off by one, the other way", r" <= ", " < "),
    ("shift an index", r"\+ (i|j|n|begin)\]", r"+ \1 + 1]"),
    ("assign instead of add", r" \+= (?!kThreads|kWarp|gridDim|kMixtures)", " = "),
    ("swap an operand", r"\* (numel|shape\.clients|kTile|pairs) \+", r"+ \1 *"),
    ("forget a guard", r"== 0\b", ">= 0"),
    ("skip the first", r"int64_t n = 0;", "int64_t n = 1;"),
    ("wrong lane", r"% kWarp", "% (kWarp / 2)"),
    ("half the warp", r"kAllLanes, ", "0xffffu, "),
]
SEEDS = {"plain": range(6), "asan": range(2), "tsan": range(2)}
TIMEOUT = 120


@dataclass(frozen=True)
class Mutant:
    rule: str
    line: int
    before: str
    after: str
    text: str


def mutants_of(text: str) -> list[Mutant]:
    """Every single change the rules make to the device and host code of a kernel, comments left alone."""
    found = []
    for rule, pattern, replacement in RULES:
        for match in re.finditer(pattern, text):
            start = text.rfind("\n", 0, match.start()) + 1
            if "//" in text[start : match.start()] or text.startswith("#", start):
                continue
            changed = text[: match.start()] + match.expand(replacement) + text[match.end() :]
            after_end = changed.find("\n", match.start())
            before = text[start : text.find("\n", match.start())].strip()
            found.append(
                Mutant(rule, text.count("\n", 0, start) + 1, before, changed[start:after_end].strip(), changed)
            )
    return found


def passes(variant: str, source: Path, cases: ModuleType, folder: Path) -> bool:
    """Whether the kernel gives the right results under this rung, in a process that may hang or crash."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_attempt, args=(variant, source, cases, folder))
    process.start()
    process.join(TIMEOUT)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode == 0


def _attempt(variant: str, source: Path, cases: ModuleType, folder: Path) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # crashes of mutants are expected and loud
    torch.set_num_threads(1)  # a forked process has none of its parent's worker threads
    try:
        emulator = Emulator(variant, [source], folder)
        problems = [cases.Problem(case, seed) for case in cases.CASES for seed in SEEDS[variant]]
        emulator.run([call for problem in problems for call in problem.calls])
        for problem in problems:
            problem.check()
    except (AssertionError, EmulationError):
        sys.exit(1)


def caught_by(mutant: Mutant, cases: ModuleType, folder: Path) -> str | None:
    source = folder / cases.SOURCE
    source.write_text(mutant.text)
    return next((variant for variant in SEEDS if not passes(variant, source, cases, folder)), None)


def main() -> None:
    caught = total = 0
    for cases in CASES:
        text = (CSRC / "cuda" / cases.SOURCE).read_text()
        with tempfile.TemporaryDirectory() as folder:
            for variant in SEEDS:
                if not passes(variant, CSRC / "cuda" / cases.SOURCE, cases, Path(folder)):
                    sys.exit(f"{cases.SOURCE} fails under {variant} as it stands: nothing can be learned from mutants")
            for mutant in mutants_of(text):
                reason = next((why for part, why in cases.EQUIVALENT.items() if part in mutant.after), None)
                rung = caught_by(mutant, cases, Path(folder))
                if rung is None and reason:
                    print(f"same    {cases.SOURCE}:{mutant.line}  {mutant.after}  ({reason})", flush=True)
                    continue
                total += 1
                caught += rung is not None
                verdict = f"caught  by {rung:5}" if rung else "SURVIVED      "
                print(f"{verdict} {cases.SOURCE}:{mutant.line}  {mutant.rule}: {mutant.after}", flush=True)
    print(f"{caught}/{total} mutants caught")
    sys.exit(caught != total)


if __name__ == "__main__":
    main()
