"""Detects lost speed on this machine by comparing speed ratios, never seconds, with recorded ones.

    python -m bench.check             measure, and compare with the ratios recorded for this machine
    python -m bench.check --record    measure, and record the ratios

Measures a few operators against common practice, and whole rounds against the yardstick with few samples per client.
The data are generated, so that they are the same on every machine.
Exits with 1 if a ratio is more than 25 % below the recorded one, and with 2 if no ratios are recorded for this machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import machine as here
from bench.end_to_end.cases import CASES
from bench.end_to_end.measure import compare
from bench.end_to_end.results import results_file, write
from bench.race import read

MAX_LOSS = 0.25
ROUNDS = ("fedcp-mnist", "fedavg-mnist", "fedpick-mnist")
# Race -> test file and the candidate to compare with.
RACES = {
    "aggregate_state_dicts": ("test_aggregate.py", "state-dict loop"),
    "conv_relu_pool_forward_and_backward[second of MNIST-one client]": ("test_conv_relu_pool.py", "plain layers"),
    "cpn_route_forward_and_backward[20 clients]": ("test_cpn_route.py", "reference"),
    "gumbel_mask_forward_and_backward[(64,4096)-False]": ("test_gumbel_mask.py", "eager, torch.rand noise"),
    "local_step[fedcp]": ("test_local_step.py", "plain torch"),
    "sgd_with_a_pull": ("test_sgd.py", "explicit gradient, foreach=True"),
    "take_normalized[20x10_of_32x32x3]": ("test_take_normalized.py", "indexing, float, normalise"),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="record the ratios instead of comparing them")
    parser.add_argument(
        "--repetitions", type=int, default=5, help="measured rounds per side, after a warm-up round (default: 5)"
    )
    chosen = parser.parse_args(arguments)
    file = results_file()
    results = json.loads(file.read_text()) if file.exists() else {"machine": here.machine()}
    if not chosen.record and "check" not in results:
        print(
            f"no ratios are recorded for this machine, {here.slug()}; on a checkout known to be good, "
            f"python -m bench.check --record writes them to {file}"
        )
        return 2
    # A busy machine slows the yardstick more, so its ratios are too high to compare with an idle machine's.
    if warning := here.busy():
        print(f"BUSY: {warning}; compare and record on an idle machine")
    measured = {**operator_ratios(), **round_ratios(chosen.repetitions)}
    if chosen.record:
        results["check"] = {"commit": here.commit(), "warning": warning, "ratios": measured}
        write(file, results)
        print(f"recorded {len(measured)} ratios in {file}")
        return 0
    recorded = results["check"]["ratios"]
    print("\n".join(table(recorded, measured)))
    problems = losses(recorded, measured)
    print(
        "\n".join(problems) or f"no ratio has lost more than {MAX_LOSS:.0%} since commit {results['check']['commit']}"
    )
    return 1 if problems else 0


def losses(recorded: Mapping[str, float], measured: Mapping[str, float], max_loss: float = MAX_LOSS) -> list[str]:
    """Returns a line for every ratio that fell by more than ``max_loss`` or is no longer measured.

    >>> losses({"a": 4.0, "b": 2.0}, {"a": 2.9, "b": 1.6, "c": 0.1})
    ['a: 2.90 times as fast, recorded 4.00: 28% lost, at most 25% may be']
    """
    problems = []
    for name, before in recorded.items():
        if name not in measured:
            problems.append(f"{name}: recorded {before:.2f}, but no longer measured; run with --record")
        elif measured[name] < (1 - max_loss) * before:
            lost = 1 - measured[name] / before
            shown = f"{measured[name]:.2f} times as fast, recorded {before:.2f}"
            problems.append(f"{name}: {shown}: {lost:.0%} lost, at most {max_loss:.0%} may be")
    return problems


def table(recorded: Mapping[str, float], measured: Mapping[str, float]) -> list[str]:
    lines = [f"{'times as fast':80}{'recorded':>10}{'now':>10}"]
    for name in dict.fromkeys([*recorded, *measured]):
        cells = (f"{values[name]:.2f}" if name in values else "-" for values in (recorded, measured))
        lines.append(f"{name:80}" + "".join(f"{cell:>10}" for cell in cells))
    return lines


def race_tests() -> list[str]:
    """Returns the pytest node ids of the races."""
    return [f"bench/{file}::test_{race}" for race, (file, _) in RACES.items()]


def operator_ratios() -> dict[str, float]:
    """Runs some of the benchmarks of ``make bench``."""
    with TemporaryDirectory() as folder:
        found = Path(folder) / "races.json"
        words = [sys.executable, "-m", "pytest", "-q", "--benchmark-enable", "--races", str(found), *race_tests()]
        subprocess.run(words, check=True, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL)
        ratios = {race.title: race.ratios for race in read(found)}
    return {f"{race} / {candidate}": ratios[race][candidate] for race, (_, candidate) in RACES.items()}


def round_ratios(repetitions: int) -> dict[str, float]:
    """Runs whole rounds on generated data, since the number of zeros to skip depends on the data."""
    with TemporaryDirectory() as empty:
        folder = Path(empty)
        return {f"{name}, quick": compare(CASES[name].quick(), repetitions, folder)["ratio"][0] for name in ROUNDS}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
