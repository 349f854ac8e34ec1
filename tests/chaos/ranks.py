"""Kills one of two ranks in each phase of a round, and resumes the run: ``python -m tests.chaos.ranks --times 2``.

The other rank must name the killed one, and the resumed run must have the results of an undisturbed one. Exits with 1
if anything was lost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.engine import small_experiments as small
from tests.engine.rank_runs import PHASES, run_ranks


def lost_by_killing(folder: Path, phase: str, victim: int) -> str | None:
    """Kills rank ``victim`` in a phase of a run and resumes it; returns a description of the damage, or None."""
    outputs, codes = run_ranks(2, "die_in", folder, phase, victim)
    survivor = outputs[1 - victim]
    if codes[victim] != -9 or codes[1 - victim] != 0:
        return f"exit codes {codes}: {outputs}"
    if f"rank {victim} " not in survivor or "has ended" not in survivor:
        return f"the killed rank is not named: {survivor}"
    resumed = small.resume_image_experiment(folder)
    whole = small.image_experiment("fedfomo", dtype="float64")
    try:
        done = resumed.state.rounds_done
        resumed.run()
        whole.run()
        wrong = small.differences(small.state_of(resumed), small.state_of(whole), 1e-9)
        if wrong:
            return f"resumed after round {done} with other results: {wrong}"
        small.assert_same_records(small.untimed_records(resumed), small.untimed_records(whole), 1e-9)
    except AssertionError as error:
        return f"resumed after round {done} with other records: {error}"
    finally:
        resumed.close()
        whole.close()
    return None


def main() -> None:
    """Kills both ranks in all phases; prints one line per kill and the number of losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=2, help="kills of each rank in each phase (default: 2)")
    kills = [(phase, victim) for _ in range(parser.parse_args().times) for phase in PHASES for victim in (0, 1)]
    lost = 0
    for number, (phase, victim) in enumerate(kills, 1):
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as home:
            problem = lost_by_killing(Path(home) / "run", phase, victim)
        lost += problem is not None
        seconds = time.monotonic() - begin
        print(
            f"{number}/{len(kills)} rank {victim} in {phase}, {seconds:.0f} s: {problem or 'nothing lost'}", flush=True
        )
    print(f"{len(kills)} kills, {lost} with a loss")
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
