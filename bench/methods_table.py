"""Trains every method on the same clients and prints a table: accuracy over seeds, time and traffic per round.

    python -m bench.methods_table                                 handwritten digits, two classes per client
    python -m bench.methods_table --setting digits5 --data-dir DIR
    python -m bench.methods_table --setting cifar10-pathological --data-dir DIR --methods fedavg fedper

The budget is small: enough to compare methods, not to reach the papers' numbers. The table and its command are written
to bench/methods-<setting>.md, row by row.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean, pstdev

from pfl_fast.experiment import Experiment
from pfl_fast.methods import METHODS

SETTINGS = {
    "digits": {"dataset": "digits", "model": "mlp", "partition": "pathological", "batch_size": 10, "lr": 0.05},
    "digits5": {
        "dataset": "digits5",
        "model": "digits-cnn",
        "partition": "domain",
        "per_client": 200,
        "image_size": 28,
        "batch_size": 32,
        "lr": 0.01,
        "momentum": 0.0,
        "model_options": (),
    },
    "cifar10": {
        "dataset": "cifar10",
        "model": "cnn",
        "partition": "dirichlet",
        "beta": 0.1,
        "clients": 20,
        "per_client": 150,
        "batch_size": 10,
        "lr": 0.02,
        "momentum": 0.0,
        "model_options": (),
    },
    "cifar10-pathological": {
        "dataset": "cifar10",
        "model": "cnn",
        "partition": "pathological",
        "classes_per_client": 2,
        "clients": 20,
        "per_client": 150,
        "batch_size": 10,
        "lr": 0.02,
    },
}
COLUMNS = ("method", "after aggregation", "after local training", "global model", "s/round", "MB moved/round")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=SETTINGS, default="digits")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    out = chosen.out or Path(__file__).parent / f"methods-{chosen.setting}.md"
    command = f"python -m bench.methods_table --setting {chosen.setting} --rounds {chosen.rounds} --seeds " + " ".join(
        map(str, chosen.seeds)
    )
    if chosen.methods != list(METHODS):
        command += " --methods " + " ".join(chosen.methods)
    settings = SETTINGS[chosen.setting]
    shown = ", ".join(f"{name} {value}" for name, value in settings.items() if value not in ((), None))
    lines = [f"`{command}`", "", f"{shown}; last round, mean and deviation over seeds {chosen.seeds}.", ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "| " + " | ".join(["---"] * len(COLUMNS)) + " |"]
    print("\n".join(lines), flush=True)
    for method in chosen.methods:
        lines.append(row(method, [train(method, settings, chosen, seed) for seed in chosen.seeds]))
        print(lines[-1], flush=True)
        out.write_text("\n".join(lines) + "\n")


def train(method: str, settings: dict, chosen: argparse.Namespace, seed: int) -> dict:
    experiment = Experiment(
        method,
        rounds=chosen.rounds,
        eval_every=chosen.rounds,
        seed=seed,
        data_dir=chosen.data_dir,
        real_data_only=True,
        log=lambda line: print(line, file=sys.stderr),
        **settings,
    )
    summary = experiment.run()
    experiment.close()
    evaluated = [r for r in experiment.records if r.get("test_accuracy_after_local") is not None]
    return {
        **summary,
        "global_accuracy": next((r["test_accuracy_global"] for r in evaluated if r.get("test_accuracy_global")), None),
    }


def row(method: str, summaries: list[dict]) -> str:
    def over_seeds(values: list[float | None]) -> str:
        known = [100 * value for value in values if value is not None]
        return f"{fmean(known):.2f} ± {pstdev(known):.2f}" if known else "-"

    def last(name: str) -> str:
        return over_seeds([s[name]["last"] if name in s else None for s in summaries])

    seconds = fmean(s["seconds_per_round"] for s in summaries)
    moved = fmean((s["uploaded_values"] + s["downloaded_values"]) * 4e-6 / s["rounds"] for s in summaries)
    accuracies = (last("test_accuracy_after_agg"), last("test_accuracy_after_local"))
    cells = (METHODS[method].title, *accuracies, over_seeds([s["global_accuracy"] for s in summaries]))
    return "| " + " | ".join([*cells, f"{seconds:.1f}", f"{moved:.1f}"]) + " |"


if __name__ == "__main__":
    main(sys.argv[1:])
