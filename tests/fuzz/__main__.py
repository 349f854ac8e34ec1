"""Damages valid files of every format at random and loads them: ``python -m tests.fuzz --seconds 600``.

A load must end, within memory and time, with data or with an error that names the file. Prints the number of inputs by
outcome, and exits with 1 if one of them was a crash, a hang, an oversize allocation, a traceback or a file written
elsewhere. ``--seed S --only N`` repeats one input.
"""

from __future__ import annotations

import argparse
import itertools
import json
import select
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HANG = 20.0  # seconds
FINE = ("read", "refused")


class Child:
    """A process that loads one input after the other; started again after a crash or a hang."""

    def __init__(self, seed: str) -> None:
        self.command = [sys.executable, "-m", "tests.fuzz.worker", seed]
        self.process: subprocess.Popen[str] | None = None

    def run(self, number: int) -> tuple[str, str, str]:
        """Returns loader, outcome and message of an input."""
        if self.process is None:
            root = Path(__file__).resolve().parents[2]
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
            )
            patience = 10 * HANG  # imports
        else:
            patience = HANG
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], patience)[0]:
            self.stop()
            return "?", "hang", f"more than {HANG} s"
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.process = None
            return "?", "crash", f"exit code {code}"
        _, loader, result, message = json.loads(line)
        return loader, result, message

    def stop(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def numbers(first: int, seconds: float | None, inputs: int | None) -> Iterator[int]:
    """Yields input numbers until the time is over or all are done."""
    end = time.monotonic() + seconds if seconds else None
    for number in itertools.count(first) if inputs is None else range(first, first + inputs):
        if end is not None and time.monotonic() > end:
            return
        yield number


def fuzz(
    seed: str, seconds: float | None = None, inputs: int | None = None, first: int = 0, jobs: int = 1
) -> tuple[dict[str, Counter[str]], list[str]]:
    """Returns the number of inputs by loader and outcome, and a description of each finding."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    findings = []
    shared, lock = numbers(first, seconds, inputs), threading.Lock()

    def work() -> None:
        child = Child(seed)
        try:
            while True:
                with lock:
                    number = next(shared, None)
                if number is None:
                    return
                loader, result, message = child.run(number)
                with lock:
                    counts[loader][result] += 1
                    if result not in FINE:
                        findings.append(f"--seed {seed} --only {number} ({loader}): {result}\n{message}")
        finally:
            child.stop()

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(work) for _ in range(jobs)]:
            done.result()
    return counts, findings


def main() -> int:
    """Parses the command line, runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="duration (default: 600)")
    parser.add_argument("--inputs", type=int, help="number of inputs, instead of a duration")
    parser.add_argument("--seed", default="0", help="seed of the inputs (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first input (default: 0)")
    parser.add_argument("--only", type=int, help="number of one input to repeat")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes (default: 2)")
    chosen = parser.parse_args()
    first, inputs = (chosen.only, 1) if chosen.only is not None else (chosen.first, chosen.inputs)
    counts, findings = fuzz(chosen.seed, None if inputs else chosen.seconds, inputs, first, chosen.jobs)
    total = sum(counts.values(), Counter[str]())
    for loader in sorted(counts):
        print(f"{loader:22} " + ", ".join(f"{count} {result}" for result, count in sorted(counts[loader].items())))
    print(f"{total.total()} inputs: " + ", ".join(f"{count} {result}" for result, count in sorted(total.items())))
    print("\n".join(findings[:20]))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
