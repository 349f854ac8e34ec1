"""Mutation testing of the CUDA kernels: measures how many faults the emulation detects.

Each rule below is applied to each match in each kernel, one at a time. A mutant is caught if one of the checks fails:
values and deadlocks under several schedules, ASan+UBSan, TSan. Mutants that do not compile are not counted; mutants
that cannot change behaviour are listed in the kernel's cases with a reason.

    make mutants                       all kernels, hours for many of them
    make mutants KERNEL=aggregate      one kernel, minutes
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from tests.emulation.harness import OPERATORS, EmulationError, Emulator
from tests.emulation.kernels import CASES

RULES = [
    ("remove a barrier", r"__syncthreads\(\);", ";"),
    ("drop an atomic", r"atomicAdd\((reinterpret_cast<[^>]*>\([^;]*?\)),\s*([^;]*)\);", r"*(\1) += \2;"),
    ("off by one", r" < ", " <= "),
    ("off by one, the other way", r" <= ", " < "),
    ("late guard", r" >= ", " > "),
    ("wrong thread", r"\+ threadIdx\.x", "+ threadIdx.x + 1"),
    ("quotient for remainder", r" % (?!kWarp)", " / "),
    ("shift an index", r"\+ (i|j|n|begin)\]", r"+ \1 + 1]"),
    ("assign instead of add", r" \+= (?!kThreads|kWarp|gridDim|kMixtures)", " = "),
    ("swap an operand", r"\* (numel|shape\.clients|kTile|pairs) \+", r"+ \1 *"),
    ("forget a guard", r"== 0\b", ">= 0"),
    ("skip the first", r"int64_t n = 0;", "int64_t n = 1;"),
    ("wrong lane", r"% kWarp", "% (kWarp / 2)"),
    ("half the warp", r"kAllLanes, ", "0xffffu, "),
]
SEEDS = {"plain": range(5), "asan": range(2), "tsan": range(2)}
TIMEOUT = 120
PASSED, CAUGHT, INVALID = 0, 1, 2


@dataclass(frozen=True)
class Mutant:
    rule: str
    line: int
    after: str
    text: str


def mutants_of(text: str) -> list[Mutant]:
    """Returns every single change that the rules make to the code of a kernel, without its comments."""
    found = []
    for rule, pattern, replacement in RULES:
        for match in re.finditer(pattern, text):
            start = text.rfind("\n", 0, match.start()) + 1
            if "//" in text[start : match.start()] or text.startswith("#", start):
                continue
            changed = text[: match.start()] + match.expand(replacement) + text[match.end() :]
            line = changed[start : changed.find("\n", match.start())].strip()
            found.append(Mutant(rule, text.count("\n", 0, start) + 1, line, changed))
    return found


def kernel_of(cases: ModuleType) -> Path:
    """Returns the file of the CUDA kernels that the cases run."""
    return OPERATORS / cases.OPERATOR / "cuda_kernel.cu"


def attempt(variant: str, source: Path, cases: ModuleType, folder: Path) -> int:
    """Runs all cases of one variant in a separate process, which may hang or crash."""
    process = multiprocessing.get_context("fork").Process(target=_attempt, args=(variant, source, cases, folder))
    process.start()
    process.join(TIMEOUT)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode if process.exitcode in (PASSED, INVALID) else CAUGHT


def _attempt(variant: str, source: Path, cases: ModuleType, folder: Path) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hides the expected crash reports of mutants
    torch.set_num_threads(1)  # a forked process does not inherit worker threads
    try:
        emulator = Emulator(variant, [source], folder)
    except EmulationError:
        sys.exit(INVALID)
    batches = [cases.CASES] if variant != "plain" else [[case] for case in cases.CASES]
    try:
        for batch in batches:
            problems = [cases.Problem(case, seed) for case in batch for seed in SEEDS[variant]]
            emulator.run([call for problem in problems for call in problem.calls])
            for problem in problems:
                problem.check()
    except (AssertionError, EmulationError):
        sys.exit(CAUGHT)


def verdict_on(mutant: Mutant, cases: ModuleType, folder: Path) -> str:
    source = folder / f"{cases.OPERATOR}.cu"
    source.write_text(mutant.text)
    for variant in SEEDS:
        outcome = attempt(variant, source, cases, folder)
        if outcome != PASSED:
            return "invalid" if outcome == INVALID else f"caught by {variant}"
    reason = next((why for part, why in cases.EQUIVALENT.items() if part in mutant.after), None)
    return f"equivalent: {reason}" if reason else "SURVIVED"


def examine(share: list[tuple[ModuleType, Mutant]], results: multiprocessing.Queue[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for cases, mutant in share:
            place = f"{cases.OPERATOR}:{mutant.line}  {mutant.rule}: {mutant.after}"
            results.put((verdict_on(mutant, cases, Path(folder)), place))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", nargs="?", help="only this operator's kernels")
    wanted = parser.parse_args().kernel
    chosen = [c for c in CASES if wanted in (None, "", c.OPERATOR)]
    if not chosen:
        sys.exit(f"no kernel {wanted!r}: choose from {[c.OPERATOR for c in CASES]}")
    with tempfile.TemporaryDirectory() as folder:
        for cases in chosen:
            for variant in SEEDS:
                if attempt(variant, kernel_of(cases), cases, Path(folder)) != PASSED:
                    sys.exit(f"{cases.OPERATOR} fails under {variant} without a mutation: fix the kernel first")
    work = [(c, m) for c in chosen for m in mutants_of(kernel_of(c).read_text())]
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = os.cpu_count() or 1
    for i in range(processes):
        context.Process(target=examine, args=(work[i::processes], results)).start()
    tally: Counter[str] = Counter()
    for _ in work:
        verdict, place = results.get()
        tally[verdict.split()[0].rstrip(":")] += 1
        print(f"{verdict:16} {place}", flush=True)
    judged = tally["caught"] + tally["SURVIVED"]
    others = f"{tally['equivalent']} equivalent, {tally['invalid']} do not compile"
    print(f"{tally['caught']}/{judged} mutants caught ({others})")
    sys.exit(tally["SURVIVED"] > 0)


if __name__ == "__main__":
    main()
