"""FedPick with its selector of 67 million parameters: what five clients take, against what was said beforehand.

    python -m bench.fedpick_memory            # a few minutes, several GiB
    python -m bench.fedpick_memory --executor batched

One round on generated 32x32 images, in a process of its own so that the peak is this run's alone. Fails if the estimate
is off by more than 20 %, or the peak is 24 GiB or more.
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
    """Runs the child and holds what it says against what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", default="threads", help="sequential, threads or batched")
    parser.add_argument("--head", default="stack", help="stack (18 million parameters each) or linear")
    parser.add_argument("--per-client", type=int, default=192, help="training samples of each client")
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
    """One round; the last line says what it took."""
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
    """The most main memory that this process ever held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def gib(count: float) -> str:
    """Bytes for a person to read."""
    return f"{count / (1 << 30):.2f} GiB"


if __name__ == "__main__":
    main()
