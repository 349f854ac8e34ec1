"""The faults of a campaign: each draws its moment from the calls and file operations of an undisturbed run."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import shim
from tests.chaos.command import Calls

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP)
ENGINE = (
    "engine/",
    "experiment.py",
    "atomic.py",
    "cli/run.py",
    "cli/compare.py",
    "comparison/",
)  # where most signals arrive


@dataclass(frozen=True)
class Undisturbed:
    """Measurements of a run without faults.

    Attributes:
        calls: number of calls of each function.
        operations: number of file operations by kind.
        readings: number of readings of a clock.
        written: bytes of the run folder.
    """

    calls: dict[tuple[str, str], int]
    operations: dict[int, int]
    readings: int
    written: int


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        text: description.
        arm: called in the process of the run, before it starts.
        signal: signal that may end the process, if any.
    """

    text: str
    arm: Callable[[], object]
    signal: int = 0


def at_a_call(random_: random.Random, run: Undisturbed, _folder: Path) -> Fault:
    """A signal when a function is called: any function, any of its calls."""
    places = sorted(run.calls)
    if random_.random() < 0.8:
        places = [place for place in places if place[0].startswith(ENGINE)]
    place, number = random_.choice(places), random_.choice(SIGNALS)
    chosen = random_.randrange(1, run.calls[place] + 1)
    twice = random_.random() < 0.1

    def act(seen: tuple[str, str], count: int) -> None:
        if seen == place and (count == chosen or (twice and count == chosen + 1)):
            os.kill(os.getpid(), number)

    text = f"{number.name}{' twice' * twice} at call {chosen} of {place[1]} in {place[0]}"
    return Fault(text, Calls(act).start, number)


def at_a_write(random_: random.Random, run: Undisturbed, folder: Path) -> Fault:
    """SIGKILL before a file operation: the process is gone between two writes."""
    at = random_.randrange(1, run.operations[shim.ANY] + 1)
    kill = signal.SIGKILL
    return Fault(f"SIGKILL before file operation {at}", lambda: shim.fail_files(folder, at=at, kill=kill), kill)


def failing_write(random_: random.Random, run: Undisturbed, folder: Path) -> Fault:
    """A file operation fails, once or from then on."""
    error, lasting = random_.choice(list(shim.FAILING)), random_.random() < 0.5
    kinds = shim.FAILING[error]
    at = random_.randrange(1, run.operations[kinds] + 1)
    text = f"{errno.errorcode[error]} {'from' if lasting else 'at'} file operation {at}"
    return Fault(text, lambda: shim.fail_files(folder, kinds, at, error, lasting))


def full_disk(random_: random.Random, run: Undisturbed, folder: Path) -> Fault:
    """The disk is full after some bytes; the last write is cut short."""
    budget = random_.randrange(2 * run.written)
    return Fault(f"a disk with room for {budget} bytes", lambda: shim.fail_files(folder, budget=budget))


def file_size_limit(random_: random.Random, run: Undisturbed, _folder: Path) -> Fault:
    """No file may be larger than a limit (RLIMIT_FSIZE)."""
    most = random_.choice((0, 100, 1000, 5000, random_.randrange(run.written)))
    return Fault(f"files of at most {most} bytes", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))


def clock(random_: random.Random, run: Undisturbed, _folder: Path) -> Fault:
    """The wall clock jumps either way, the monotonic clock forward, as after a suspension."""
    at = random_.randrange(1, run.readings + 1)
    wall = random_.choice((-1, 1)) * random_.choice((1, 3600, 10**9))
    steady = random_.choice((0, 3600, 10**6))
    text = f"clocks jump by {wall} s and {steady} s at reading {at}"
    return Fault(text, lambda: shim.jump_clock(at, wall, steady))


def little_memory(random_: random.Random, _run: Undisturbed, _folder: Path) -> Fault:
    """The process gets little more memory than it has (RLIMIT_AS)."""
    more = random_.choice((0, 1, 4, 16, 64, 256)) << 20

    def arm() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    return Fault(f"{more >> 20} MiB of memory", arm)


# Two thirds of the faults end or disturb the process; see tests/chaos/campaign.py for the others.
FAULTS = (
    *(at_a_call,) * 4,
    *(at_a_write,) * 2,
    *(failing_write,) * 3,
    *(full_disk,) * 2,
    file_size_limit,
    clock,
    little_memory,
)
