"""Growth of a round's time and memory with the number of clients, cohort size, parameters and classes.

    python -m bench.growth                     all tables
    python -m bench.growth clients cohort      only these

Each size runs in a separate process to measure its peak memory. The exponent is the slope of a least-squares line
through the logarithms: 0 is constant, 1 is linear growth.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from math import log
from statistics import linear_regression, median

from pfl_fast import Experiment
from pfl_fast.data.synthetic import synthetic

ROUNDS, SAMPLES = 12, 20
COMMON = {"clients": 20, "cohort": 20, "width": 128, "classes": 10, "disk": 0}
# Quantity that grows -> settings. The parameters of the middle layers grow with the square of the width.
AXES: dict[str, list[dict[str, int]]] = {
    "clients": [{"clients": n} for n in (20, 200, 2000, 20000, 100000)],
    "clients-on-disk": [{"clients": n, "disk": 1} for n in (20, 200, 2000, 20000, 100000)],
    "cohort": [{"clients": 200, "cohort": n} for n in (5, 20, 50, 100, 200)],
    "parameters": [{"clients": 4, "cohort": 4, "width": n} for n in (230, 760, 2400, 7600)],
    "classes": [{"classes": n} for n in (10, 30, 100, 300, 1000)],
}
HEADER = ("ms/round", "of it, ms", "MiB more at the peak than before round 1")


def experiment_of(clients: int, cohort: int, width: int, classes: int, disk: int = 0) -> Experiment:
    return Experiment(
        "fedcp",
        dataset=synthetic(clients * SAMPLES, (64,), classes, modality="features"),
        model="mlp",
        model_options=(f"hidden=[{width}, {width}, 128]",),
        partition="iid",
        clients=clients,
        join_ratio=cohort / clients,
        rounds=ROUNDS,
        eval_clients="selected",
        eval_every=ROUNDS,
        state="disk" if disk else "memory",
        log=lambda _: None,
    )


def measure(clients: int, cohort: int, width: int, classes: int, disk: int) -> dict:
    """Returns medians over rounds, without the first (warm-up) and the last (global model evaluated on all data)."""
    experiment_of(clients=4, cohort=4, width=16, classes=10).run()  # triggers lazy imports
    experiment = experiment_of(clients, cohort, width, classes, disk)
    before = memory("VmRSS")
    records = list(experiment.rounds())[1:-1]
    parts = {name: median(r["seconds_by_part"][name] for r in records) for name in records[0]["seconds_by_part"]}
    return {
        "clients": clients,
        "cohort": cohort,
        "parameters": sum(p.numel() for p in experiment.part_table.client.extractor.parameters()),
        "classes": classes,
        "ms": 1000 * median(r["seconds"] for r in records),
        "parts": ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in parts.items()),
        "mib": max(memory("VmHWM") - before, 1.0),  # smaller values are noise, and 0 has no logarithm
    }


def memory(field: str) -> float:
    """Returns a memory field of ``/proc/self/status`` in MiB."""
    with open("/proc/self/status") as file:  # noqa: PTH123 not a regular file
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Returns p in ``values ~ sizes ** p``, fitted by least squares to the logarithms.

    >>> round(exponent([1, 10, 100], [3, 30, 300]), 6)
    1.0
    """
    return linear_regression([log(size) for size in sizes], [log(value) for value in values]).slope


def grow(axis: str) -> None:
    grows = axis.split("-")[0]
    print(f"\n| {axis} | " + " | ".join(HEADER) + " |\n| --- | --- | --- | --- |", flush=True)
    rows = []
    for sizes in AXES[axis]:
        words = [sys.executable, "-m", "bench.growth", "--measure", json.dumps({**COMMON, **sizes})]
        rows.append(json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout))
        row = rows[-1]
        print(f"| {row[grows]:,} | {row['ms']:.0f} | {row['parts']} | {row['mib']:.0f} |", flush=True)
    slopes = [exponent([row[grows] for row in rows], [row[what] for row in rows]) for what in ("ms", "mib")]
    print(f"| exponent | {slopes[0]:.2f} | | {slopes[1]:.2f} |", flush=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="*", metavar="|".join(AXES), help="quantities that grow (default: all)")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if unknown := [axis for axis in chosen.axes if axis not in AXES]:
        parser.error(f"choose from {', '.join(AXES)}, got {', '.join(unknown)}")
    if chosen.measure:
        print(json.dumps(measure(**chosen.measure)))
        return
    print(f"FedCP, MLP, {SAMPLES} samples per client, {ROUNDS} rounds; 20 clients take part unless stated otherwise.")
    for axis in chosen.axes or AXES:
        grow(axis)


if __name__ == "__main__":
    main(sys.argv[1:])
