"""Compares the library with the yardstick in one run: whole rounds with evaluation, memory, operators per step.

    python -m bench.end_to_end --quick                few samples per client, some minutes
    python -m bench.end_to_end --brief                25 minutes: whole data sets for FedCP and FedAvg on MNIST
    python -m bench.end_to_end                        whole data sets, two hours or more on two cores
    python -m bench.end_to_end --cases fedcp-mnist    only this one; the others' results are kept
    python -m bench.end_to_end --table                what was last measured on this machine, as a table
    python -m bench.end_to_end --update-docs          the same into README.md and docs/performance.md

Each instruction set of the processor is measured in processes of its own, in which torch, oneDNN and MKL are limited to
it, too; a lower one only for FedCP and FedAvg on MNIST. On processors that are not Intel's, MKL chooses its
instructions itself. Results go to bench/end_to_end/<processor>-<cores>.json. Data sets are searched in --data-dir or
PFL_FAST_DATA; a missing one is replaced by generated data of its shape, which the results state.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import machine as here
from bench.end_to_end import report
from bench.end_to_end.cases import CASES, FIRST, Case
from bench.end_to_end.measure import SIDES, compare, dispatches, exchange, one_round, peak_memory, workers
from bench.end_to_end.results import results_file, stored, write
from bench.operators import INSTRUCTION_SETS, available, environment

EXCHANGES = 9  # repetitions of the aggregation and broadcast
SECONDARY = (*FIRST, "fedcp-mnist-few")  # cases of the lower instruction sets


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="bench.end_to_end", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = found.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="at most 200 training samples per client")
    size.add_argument(
        "--brief", action="store_true", help="at most 500, but whole data sets for FedCP and FedAvg on MNIST; no memory"
    )
    found.add_argument(
        "--instruction-sets", nargs="+", choices=INSTRUCTION_SETS, help="default: all of the processor, the best first"
    )
    found.add_argument(
        "--cases", nargs="+", choices=CASES, metavar="CASE", help=f"cases to measure: {', '.join(CASES)}"
    )
    found.add_argument(
        "--repetitions", type=int, help="measured rounds per side, after a warm-up round (default: 5; 2 with --brief)"
    )
    found.add_argument("--data-dir", type=Path, help="folder with data sets")
    found.add_argument("--out", type=Path, help="the file of results; default: this machine's")
    found.add_argument("--table", action="store_true", help="print the last results as Markdown, measure nothing")
    found.add_argument("--update-docs", action="store_true", help="write them into README.md and docs/performance.md")
    found.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    found.add_argument("--peak", choices=SIDES, help=argparse.SUPPRESS)
    return found


def main(arguments: Sequence[str]) -> None:
    chosen = parser().parse_args(arguments)
    file = chosen.out or results_file()
    if chosen.peak:
        print(one_round(case_of(chosen.cases[0], chosen), chosen.peak, chosen.data_dir))
    elif chosen.here:
        run(chosen, file)
    elif not chosen.table and not chosen.update_docs:
        sets = chosen.instruction_sets or available(here.cpuinfo("flags").split())[::-1]
        for name in sets:
            words = [sys.executable, "-m", "bench.end_to_end", *arguments, "--here"]
            words += [] if chosen.cases or name == sets[0] else ["--cases", *SECONDARY]
            if code := subprocess.run(words, check=False, env=environment(name)).returncode:
                sys.exit(f"the benchmark on {name} failed with exit code {code}, see above")
    if chosen.table:
        print(report.table(stored(file)), end="")
    if chosen.update_docs:
        report.update_docs(stored(file))


def case_of(name: str, chosen: argparse.Namespace) -> Case:
    """Returns a case in the chosen size."""
    case = CASES[name]
    return case.quick() if chosen.quick else case.brief() if chosen.brief else case


def run(chosen: argparse.Namespace, file: Path) -> None:
    """Measures with the instruction set of this process, and writes the results after every case."""
    mode = f"{'quick' if chosen.quick else 'full'} {here.kernels()}"
    results = {**(json.loads(file.read_text()) if file.exists() else {}), "machine": here.machine()}
    mine = results[mode] = {**results.get(mode, {"cases": {}}), "commit": here.commit()}
    mine["peaks"], mine["warning"] = here.peaks({}), here.busy()
    repetitions = chosen.repetitions or (2 if chosen.brief else 5)
    if not chosen.cases:
        # Measured first: after large models have run, the yardstick's copies take twice as long.
        mine["exchange"] = exchange(EXCHANGES)
    for name in chosen.cases or CASES:
        case = case_of(name, chosen)
        mine["peaks"] = here.peaks(mine["peaks"])
        old = mine["cases"].get(name, {})
        memory = {"peak_mib": old["peak_mib"]} if "peak_mib" in old and old.get("most") == case.most else {}
        if not chosen.brief:
            memory["peak_mib"] = peak_memory(case, chosen.quick, chosen.data_dir)
        mine["cases"][name] = {**compare(case, repetitions, chosen.data_dir), **memory}
        print("\n".join(report.case_lines(name, mine["cases"][name], mine["peaks"])), flush=True)
        write(file, results)
    few = {name: CASES[name].quick() for name in FIRST if name in (chosen.cases or CASES)}
    mine["workers"] = {name: workers(case, 5, chosen.data_dir) for name, case in few.items()}
    if not chosen.cases:
        mine["dispatches"] = {name: dispatches(CASES[name]) for name in FIRST}
    write(file, results)
    print("\n" + report.page(mode, results), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
