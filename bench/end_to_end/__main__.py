"""Compares the library with the yardstick in one run: whole rounds with evaluation, memory, operators per step.

    python -m bench.end_to_end --quick                few samples per client, some minutes
    python -m bench.end_to_end                        whole data sets, an hour or two on two cores
    python -m bench.end_to_end --cases fedcp-mnist    only this one; the others' results are kept
    python -m bench.end_to_end --table                what was last measured on this machine, as a table
    python -m bench.end_to_end --update-docs          the same into README.md and docs/performance.md

Results go to bench/end_to_end/<processor>-<cores>.json. Data sets are searched in --data-dir or PFL_FAST_DATA; a
missing one is replaced by generated data of its shape, which the results state.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import machine as here
from bench.end_to_end import report
from bench.end_to_end.cases import CASES
from bench.end_to_end.measure import SIDES, compare, dispatches, exchange, one_round, peak_memory
from bench.end_to_end.results import results_file, stored, write

EXCHANGES = 9  # repetitions of the aggregation and broadcast
COUNTED = ("fedcp-mnist", "fedavg-mnist")  # cases whose operators are counted


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="bench.end_to_end", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--quick", action="store_true", help="at most 200 training samples per client")
    found.add_argument(
        "--cases", nargs="+", choices=CASES, metavar="CASE", help=f"cases to measure: {', '.join(CASES)}"
    )
    found.add_argument(
        "--repetitions", type=int, default=5, help="measured rounds per side, after a warm-up round (default: 5)"
    )
    found.add_argument("--data-dir", type=Path, help="folder with data sets")
    found.add_argument("--out", type=Path, help="the file of results; default: this machine's")
    found.add_argument("--table", action="store_true", help="print the last results as Markdown, measure nothing")
    found.add_argument("--update-docs", action="store_true", help="write them into README.md and docs/performance.md")
    found.add_argument("--peak", choices=SIDES, help=argparse.SUPPRESS)
    return found


def main(arguments: Sequence[str]) -> None:
    chosen = parser().parse_args(arguments)
    file = chosen.out or results_file()
    if chosen.peak:
        case = CASES[chosen.cases[0]]
        print(one_round(case.quick() if chosen.quick else case, chosen.peak, chosen.data_dir))
    elif chosen.table:
        print(report.table(stored(file)), end="")
    elif chosen.update_docs:
        report.update_docs(stored(file))
    else:
        run(chosen, file)


def run(chosen: argparse.Namespace, file: Path) -> None:
    """Measures, and writes the results after every case."""
    mode = "quick" if chosen.quick else "full"
    results = {**(json.loads(file.read_text()) if file.exists() else {}), "machine": here.machine()}
    mine = results[mode] = {**results.get(mode, {"cases": {}}), "commit": here.commit()}
    mine["peaks"], mine["warning"] = here.peaks({}), here.busy()
    if not chosen.cases:
        # Measured first: after large models have run, the yardstick's copies take twice as long.
        mine["exchange"] = exchange(EXCHANGES)
    for name in chosen.cases or CASES:
        case = CASES[name].quick() if chosen.quick else CASES[name]
        mine["peaks"] = here.peaks(mine["peaks"])
        measured = compare(case, chosen.repetitions, chosen.data_dir)
        mine["cases"][name] = {**measured, "peak_mib": peak_memory(case, chosen.quick, chosen.data_dir)}
        print("\n".join(report.case_lines(name, mine["cases"][name], mine["peaks"])), flush=True)
        write(file, results)
    if not chosen.cases:
        mine["dispatches"] = {name: dispatches(CASES[name]) for name in COUNTED}
        write(file, results)
    print("\n" + report.page(mode, results))


if __name__ == "__main__":
    main(sys.argv[1:])
