"""Disturbs small runs and resumes them: ``python -m tests.chaos --faults 300``.

A run is stopped by signals, failing writes, full disks, limits and clocks, its folder is damaged, or two processes work
on it at once. Then it is resumed, and all its files are compared with those of an undisturbed run. Prints the number of
faults by outcome, and exits with 1 if anything was lost: a wrong or missing result, a traceback, a crash or a hang.
``--compare`` disturbs comparisons of two methods instead of runs. ``--seed S --only N`` repeats one fault.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

MEMORY = Path("/dev/shm")  # a file system without a disk, on Linux
PRELOADED = "PFL_FAST_CHAOS_SHIM"


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=300, help="number of faults (default: 300)")
    parser.add_argument("--seconds", type=float, help="end earlier, after this time")
    parser.add_argument("--seed", default="0", help="seed of the faults (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first fault (default: 0)")
    parser.add_argument("--only", type=int, help="number of one fault to repeat")
    parser.add_argument("--compare", action="store_true", help="disturb comparisons instead of runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes (default: cores)")
    return parser.parse_args()


def preload() -> None:
    """Starts this program again with the shim in it, unless it is there."""
    if os.environ.get(PRELOADED):
        return
    from tests.chaos.shim import compile_shim

    folder = Path(tempfile.mkdtemp(prefix="pfl-chaos-"))
    library = compile_shim(folder)
    environment = {**os.environ, "LD_PRELOAD": str(library), PRELOADED: str(folder), "OMP_NUM_THREADS": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "tests.chaos", *sys.argv[1:]], environment)


def run(chosen: argparse.Namespace, home: Path) -> Counter[str]:
    """Tries all faults in ``jobs`` processes; returns the number by outcome."""
    from tests.chaos.campaign import warm_up  # loads the native library from the user's cache

    os.environ.update(PFL_FAST_CACHE=str(home / "cache"), PFL_FAST_DATA=str(home / "data"))
    output = os.dup(1)
    os.dup2(2, 1)
    warm_up(home / "warm", chosen.compare)
    os.dup2(output, 1)
    end = time.monotonic() + chosen.seconds if chosen.seconds else None
    numbers = [chosen.only] if chosen.only is not None else range(chosen.first, chosen.first + chosen.faults)
    jobs = min(chosen.jobs, len(numbers))
    pipes = []
    for job in range(jobs):
        reader, writer = os.pipe()
        if os.fork() == 0:
            code = 1
            try:
                with os.fdopen(writer, "w", buffering=1) as channel:
                    work(chosen, numbers[job::jobs], home / str(job), end, channel)
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                os._exit(code)
        os.close(writer)
        pipes.append(reader)
    found = [json.loads(line) for reader in pipes for line in os.fdopen(reader)]
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in pipes]
    if any(codes):
        raise SystemExit(f"a process of the campaign ended with {codes}")
    if chosen.only is not None:
        print(json.dumps(found[0], indent=1))
    return Counter(one["result"] for one in found)


def work(chosen: argparse.Namespace, numbers: Sequence[int], home: Path, end: float | None, channel: TextIO) -> None:
    """Tries faults until the time is over, and writes a line for each; prints losses and the progress on stderr."""
    from tests.chaos.campaign import Campaign

    home.mkdir()
    campaign, reported = Campaign(chosen.seed, home, chosen.compare), time.monotonic()
    for tried, number in enumerate(numbers):
        if end is not None and time.monotonic() > end:
            return
        if time.monotonic() > reported + 60:
            reported = time.monotonic()
            print(f"{tried} of {len(numbers)} faults of this process tried", file=sys.stderr)
        outcome = campaign.try_fault(number)
        channel.write(json.dumps({"number": number, **vars(outcome)}) + "\n")
        if outcome.result == "lost":
            again = f"{'--compare ' * chosen.compare}--seed {chosen.seed} --only {number}"
            print(f"{again} ({outcome.fault})\n  {outcome.story}\n", file=sys.stderr)


def main() -> int:
    """Runs and prints."""
    chosen = arguments()
    preload()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as home:
        counts = run(chosen, Path(home))
    shutil.rmtree(os.environ[PRELOADED])
    seconds = time.monotonic() - start
    tried = sum(counts.values())
    print(f"{tried} faults tried in {seconds:.0f} s: " + ", ".join(f"{counts[name]} {name}" for name in
          ("same to the bit", "refused clearly", "lost")))  # fmt: skip
    return 1 if counts["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
