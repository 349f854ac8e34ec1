"""How a round's time and memory follow the number of clients, when 20 of them take part in each.

    python -m bench.growth

Each size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

SIZES = (20, 200, 2000, 20000)
COHORT, ROUNDS, SAMPLES = 20, 12, 20


def measure(clients: int) -> None:
    from pfl_fast.data.synthetic import synthetic
    from pfl_fast.experiment import Experiment

    experiment = Experiment(
        "fedcp",
        dataset=synthetic(clients * SAMPLES, (64,), 10, kind="features"),
        model="mlp",
        partition="iid",
        clients=clients,
        join_ratio=COHORT / clients,
        rounds=ROUNDS,
        eval_clients="selected",
        eval_every=ROUNDS,
        report=lambda _: None,
    )
    before = memory("VmRSS")
    records = list(experiment.rounds())[1:-1]  # the first warms up, the last tests the server's model on everything
    parts = {name: median(r["seconds_by_part"][name] for r in records) for name in records[0]["seconds_by_part"]}
    took = median(r["seconds"] for r in records)
    touched = int(experiment.server.state.touched.sum())
    shown = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in parts.items())
    print(f"| {clients} | {1000 * took:.0f} | {shown} | {touched} | {memory('VmHWM') - before:.0f} |", flush=True)


def memory(field: str) -> float:
    """MiB of this process, as the kernel counts them."""
    with open("/proc/self/status") as file:  # noqa: PTH123 not a file of ours
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))


def main() -> None:
    print(f"FedCP, MLP, {SAMPLES} samples per client, {COHORT} clients in each of {ROUNDS} rounds; medians.\n")
    print("| clients | ms/round | of it, ms | clients ever trained | MiB more at the peak than before round 1 |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for size in SIZES:
        subprocess.run([sys.executable, "-m", "bench.growth", str(size)], check=True)


if __name__ == "__main__":
    measure(int(sys.argv[1])) if len(sys.argv) > 1 else main()
