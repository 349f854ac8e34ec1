"""Compares the memory estimate with the peak memory of FedPick, whose selector has 67 million parameters per client.

    python -m bench.fedpick_memory            # a few minutes, several GiB
    python -m bench.fedpick_memory --executor batched

Runs one round of five clients on generated 32x32 images in a separate process, so that the peak is that of the run.
Fails if the estimate is off by more than 20 %, or the peak is 24 GiB or more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

CLIENTS, TESTS = 5, 200
LIMIT, TOLERANCE = 24 << 30, 0.2


def main() -> None:
    """Runs the child process and compares its estimate with its peak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", default="threads", help="executor: sequential, threads or batched")
    parser.add_argument("--head", default="stack", help="head of the model: stack (18 million parameters) or linear")
    parser.add_argument("--per-client", type=int, default=192, help="training samples per client")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        train(arguments.executor, arguments.head, arguments.per_client)
        return
    command = [sys.executable, "-m", "bench.fedpick_memory", "--child", *sys.argv[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        facts = {}
        for line in child.stdout:
            if line.startswith("{"):
                facts = json.loads(line)
            else:
                print(line, end="", flush=True)
    if child.returncode:
        sys.exit(f"the run ended with exit code {child.returncode}")
    ratio = facts["estimate"] / facts["peak"]
    print(f"estimate {gib(facts['estimate'])}, peak {gib(facts['peak'])}, estimate / peak {ratio:.2f}")
    print(f"one round: {facts['seconds']:.0f} s, selection ratio {facts['selection_ratio']:.3f}")
    if abs(ratio - 1) > TOLERANCE or facts["peak"] >= LIMIT:
        sys.exit(f"expected a ratio within {TOLERANCE:.0%} of 1 and a peak below {gib(LIMIT)}")


def train(executor: str, head: str, per_client: int) -> None:
    """Trains one round and prints estimate, peak and time as JSON in the last line."""
    from pfl_fast.data.synthetic import synthetic
    from pfl_fast.experiment import Experiment
    from pfl_fast.methods import METHODS
    from pfl_fast.models import build

    defaults = METHODS["fedpick"].defaults("cnn", "digits5")
    experiment = Experiment(
        "fedpick",
        dataset=synthetic(CLIENTS * (per_client + TESTS), domains=CLIENTS),
        model=build("digits-cnn", input_shape=(3, 32, 32), classes=10, cut="conv", head=head),
        executor=executor,
        rounds=1,
        test_fraction=TESTS / (per_client + TESTS),
        **{**defaults, "per_client": per_client},
    )
    parameters = {
        name: sum(p.numel() for p in m.parameters()) for name, m in experiment.part_table.client.named_children()
    }
    print(f"{experiment.data.clients} clients, {executor}: " + ", ".join(f"{n} {c:,}" for n, c in parameters.items()))
    estimate = experiment.memory()
    print(f"estimate beforehand: {estimate}", flush=True)
    (record,) = experiment.rounds()
    facts = {"estimate": estimate.total, "peak": peak(), "seconds": record["seconds"]}
    print(json.dumps({**facts, "selection_ratio": record["selection_ratio"]}))
    experiment.close()


def peak() -> int:
    """Returns the peak resident memory of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def gib(count: float) -> str:
    """Formats bytes as GiB."""
    return f"{count / (1 << 30):.2f} GiB"


if __name__ == "__main__":
    main()
