"""Share of local training during which a worker holds the interpreter's lock: ``python -m bench.lock_share``.

One thread trains clients of the papers' CNN on MNIST-sized images. Recorded programs run without the lock, and so do
the few operators on large batches that compute cached values; all other time counts as time under it.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from bench.machine import machine
from pfl_fast import Experiment
from pfl_fast.data.synthetic import synthetic
from pfl_fast.engine.local.program import StepProgram
from pfl_fast.engine.local.runner import Runner
from pfl_fast.engine.local.trainer import Trainer

METHODS, CLIENTS, SAMPLES, ROUNDS = ("fedavg", "fedper", "fedcp"), 2, 1000, 3


class Clock:
    """Seconds of CPU time spent in calls of a method of a class: other processes do not disturb it."""

    def __init__(self, owner: type, name: str) -> None:
        self.owner, self.name, self.method, self.seconds = owner, name, getattr(owner, name), 0.0

    def __enter__(self) -> Clock:
        def timed(*arguments: Any, **named: Any) -> Any:
            begin = time.thread_time()
            try:
                return self.method(*arguments, **named)
            finally:
                self.seconds += time.thread_time() - begin

        setattr(self.owner, self.name, timed)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self.owner, self.name, self.method)


def shares(method: str, capture: str) -> tuple[float, float]:
    """Returns milliseconds per step and the share of time under the lock, medians over rounds after the first."""
    data = synthetic(CLIENTS * SAMPLES, (1, 28, 28), 10)
    settings = {"clients": CLIENTS, "model": "cnn", "executor": "sequential", "partition": "iid", "capture": capture}
    experiment = Experiment(method, dataset=data, rounds=ROUNDS, eval_every=ROUNDS, log=lambda _: None, **settings)
    found = []
    rounds = experiment.rounds()
    while True:
        clocks = Clock(StepProgram, "run"), Clock(Runner, "cached_values")
        with Clock(Trainer, "train") as training, clocks[0], clocks[1]:
            if next(rounds, None) is None:
                break
        steps = sum(experiment.data.steps(client) for client in range(CLIENTS))
        found.append((1e3 * training.seconds / steps, 1 - sum(clock.seconds for clock in clocks) / training.seconds))
    experiment.close()
    times, under = zip(*found[1:], strict=True)
    return median(times), median(under)


def main() -> None:
    torch.set_num_threads(1)
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    print(f"{'method':8} {'eager, ms/step':>15} {'program, ms/step':>17} {'times as fast':>14} {'under the lock':>15}")
    for method in METHODS:
        eager, recorded = shares(method, "off")[0], shares(method, "auto")
        print(f"{method:8} {eager:15.2f} {recorded[0]:17.2f} {eager / recorded[0]:14.2f} {recorded[1]:14.1%}")


if __name__ == "__main__":
    main()
