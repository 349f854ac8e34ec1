"""The library against the yardstick, in turns in one run: whole rounds with tests, memory, and operators per step.

    python -m bench.end_to_end --quick                few samples per client, some minutes
    python -m bench.end_to_end                        whole data sets, an hour or two on two cores
    python -m bench.end_to_end --cases fedcp-mnist    only this one; the others' results are kept
    python -m bench.end_to_end --table                what was last measured on this machine, as a table
    python -m bench.end_to_end --update-docs          the same into README.md and docs/performance.md

Results go to bench/end_to_end/<processor>-<cores>.json. Data sets are looked for in --data-dir or PFL_FAST_DATA; one
that is not there is generated in its shape, and the results say so.
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

EXCHANGES = 9  # they are short
COUNTED = ("fedcp-mnist", "fedavg-mnist")  # whose operators are counted


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="bench.end_to_end", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--quick", action="store_true", help="at most 200 training samples per client")
    found.add_argument("--cases", nargs="+", choices=CASES, metavar="CASE", help=f"of {', '.join(CASES)}")
    found.add_argument("--repetitions", type=int, default=5, help="rounds of each side, besides a first one (5)")
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
    """Measures, and writes what there is after every case."""
    mode = "quick" if chosen.quick else "full"
    results = {**(json.loads(file.read_text()) if file.exists() else {}), "machine": here.machine()}
    mine = results[mode] = {**results.get(mode, {"cases": {}}), "commit": here.commit()}
    mine["peaks"], mine["warning"] = here.peaks({}), here.busy()
    if not chosen.cases:
        # First: in memory that large models have left behind, the yardstick's copies take twice as long.
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
