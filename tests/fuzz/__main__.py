"""Damages valid files of every format at random and loads them: ``python -m tests.fuzz --seconds 600``.

A load must end, within memory and time, with data or with an error that names the file. Prints the number of inputs by
outcome, and exits with 1 if one of them was a crash, a hang, an oversize allocation, a traceback or a file written
elsewhere. ``--seed S --only N`` repeats one input; Ctrl-C ends early.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

HANG = 20.0  # seconds
MEMORY = Path("/dev/shm")  # a file system without a disk, on Linux
BATCH = 32  # inputs that a process gets at once
FINE = ("read", "refused")


class Child:
    """A process that loads inputs; started again after a crash or a hang."""

    def __init__(self, seed: str, home: str) -> None:
        self.command = [sys.executable, "-m", "tests.fuzz.worker", seed, home]
        self.process: subprocess.Popen[bytes] | None = None
        self.received = b""  # start of an answer

    def run(self, inputs: Sequence[int]) -> Iterator[tuple[int, str, str, str]]:
        """Yields number, loader, outcome and message of each input."""
        rest = deque(inputs)
        while rest:
            patience = HANG if self.process else 10 * HANG  # imports
            self._send(rest)
            while rest and (line := self._line(patience)):
                yield tuple(json.loads(line))
                rest.popleft()
                patience = HANG
            if rest:  # without an answer
                hangs = line is None
                code = self.stop()
                outcome = ("hang", f"more than {HANG:g} s") if hangs else ("crash", f"exit code {code}")
                yield rest.popleft(), "?", *outcome

    def _send(self, inputs: Iterable[int]) -> None:
        if self.process is None:
            root = Path(__file__).resolve().parents[2]
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)
            self.received = b""
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, inputs)).encode() + b"\n")
        self.process.stdin.flush()

    def _line(self, patience: float) -> bytes | None:
        """Returns an answer; empty at the end of the process, None if there is none in time."""
        assert self.process
        assert self.process.stdout
        while b"\n" not in self.received:
            if not select.select([self.process.stdout], [], [], patience)[0]:
                return None
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                return b""
            self.received += more
        line, _, self.received = self.received.partition(b"\n")
        return line

    def stop(self) -> int:
        """Ends the process and returns its exit code."""
        if self.process is None:
            return 0
        self.process.kill()
        self.process.communicate()
        code, self.process = self.process.returncode, None
        return code


def numbers(first: int, seconds: float | None, inputs: int | None) -> Iterator[int]:
    """Yields input numbers until the time is over or all are done."""
    end = time.monotonic() + seconds if seconds else None
    for number in itertools.count(first) if inputs is None else range(first, first + inputs):
        if end is not None and time.monotonic() > end:
            return
        yield number


class Campaign:
    """Tries inputs in several processes, and counts.

    Attributes:
        counts: number of inputs by loader and outcome.
        findings: a description of each finding.
    """

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.findings: list[str] = []
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._reported = self._start

    @property
    def total(self) -> Counter[str]:
        """Number of inputs by outcome."""
        return sum(self.counts.values(), Counter[str]())

    def run(self, inputs: Iterator[int], jobs: int) -> None:
        """Tries all inputs; prints findings at once, and progress every minute, on stderr."""
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as home:
            self._run(inputs, jobs, home)

    def _run(self, inputs: Iterator[int], jobs: int, home: str) -> None:
        stop = threading.Event()

        def work() -> None:
            child = Child(self.seed, home)
            try:
                while not stop.is_set():
                    with self._lock:
                        batch = list(itertools.islice(inputs, BATCH))
                    if not batch:
                        return
                    for answer in child.run(batch):
                        self._add(*answer)
            finally:
                child.stop()

        with ThreadPoolExecutor(jobs) as pool:
            try:
                for done in [pool.submit(work) for _ in range(jobs)]:
                    done.result()
            finally:
                stop.set()

    def _add(self, number: int, loader: str, result: str, message: str) -> None:
        with self._lock:
            self.counts[loader][result] += 1
            if result not in FINE:
                finding = f"--seed {self.seed} --only {number} ({loader}): {result}\n{message}"
                self.findings.append(finding)
                print(finding, file=sys.stderr, flush=True)
            now = time.monotonic()
            if now > self._reported + 60:
                self._reported = now
                print(self.summary(), file=sys.stderr, flush=True)

    def summary(self) -> str:
        """Returns the number of inputs by outcome, and their rate."""
        seconds = time.monotonic() - self._start
        count = self.total.total()
        outcomes = ", ".join(f"{number} {name}" for name, number in sorted(self.total.items()))
        return f"{count} inputs in {seconds:.0f} s ({count / seconds:.0f}/s): {outcomes}"


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
    campaign = Campaign(chosen.seed)
    with suppress(KeyboardInterrupt):
        campaign.run(numbers(first, None if inputs else chosen.seconds, inputs), chosen.jobs)
    for loader, counts in sorted(campaign.counts.items()):
        print(f"{loader:22} " + ", ".join(f"{count} {result}" for result, count in sorted(counts.items())))
    print(campaign.summary())
    return 1 if campaign.findings else 0


if __name__ == "__main__":
    sys.exit(main())
