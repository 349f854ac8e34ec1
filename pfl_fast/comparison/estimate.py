"""Estimates the time of planned runs from one short round of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from pfl_fast import assembly
from pfl_fast.comparison.plan import ComparisonPlan, PlannedRun
from pfl_fast.comparison.results import is_finished
from pfl_fast.config import Settings
from pfl_fast.data.partition import Partition
from pfl_fast.experiment import Experiment

BATCHES = 2  # batches of a client in a probe
TESTED = 64  # test samples of a client in a probe
ROUNDS, SECONDS = 4, 2.0  # the fastest of so many rounds, or of those that begin within so many seconds


@dataclass(frozen=True)
class Pace:
    """Seconds of parts of a round: per training sample, per test sample, and per client."""

    training: float
    tests: float
    client: float

    def seconds(self, settings: Settings, partition: Partition, final_epochs: float) -> float:
        """Returns the seconds of a whole run.

        Args:
            settings: settings of the run.
            partition: its partition.
            final_epochs: length of the final fine-tune, in rounds.
        """
        s = settings
        share = (1 + s.join_ratio) / 2 if s.random_join else s.join_ratio
        training = sum(map(len, partition.train)) * (1.0 if s.train_all else share)
        tests = sum(map(len, partition.test))
        evaluations = -(-s.rounds // s.eval_every) + bool(final_epochs)
        rounds = (s.rounds + final_epochs) * (training * self.training + partition.clients * share * self.client)
        return rounds + evaluations * tests * self.tests


def estimate(plans: Sequence[ComparisonPlan]) -> Iterator[tuple[ComparisonPlan, float]]:
    """Yields each plan with the seconds of its unfinished runs; runs of one method and model share a probe."""
    paces: dict[Any, tuple[Pace, float]] = {}
    for plan in plans:
        total = 0.0
        for run in plan.runs:
            if is_finished(run.folder):
                continue
            s = run.resolved.settings
            about = (plan.dataset.name, s.model, s.model_options, s.batch_size, s.image_size, s.local_epochs)
            kind = (run.resolved.method, run.resolved.options, *about)
            if kind not in paces:
                paces[kind] = probe(plan, run)
            pace, final_epochs = paces[kind]
            total += pace.seconds(s, plan.partitions[run.seed], final_epochs)
        yield plan, total


def probe(plan: ComparisonPlan, run: PlannedRun) -> tuple[Pace, float]:
    """Measures a round of few clients with few samples; returns the pace, and the final fine-tune in rounds."""
    s, whole = run.resolved.settings, plan.partitions[run.seed]
    chosen = np.argsort([-len(samples) for samples in whole.train])[: min(whole.clients, max(2, os.cpu_count() or 1))]
    cut = {"train": BATCHES * s.batch_size, "test": TESTED, "validation": TESTED}
    parts = [tuple(getattr(whole, split)[c][:most] for c in chosen) for split, most in cut.items()]
    partition = Partition(whole.rule, whole.settings, *parts)
    values = {**run.resolved.chosen, "rounds": ROUNDS, "eval_every": 1, "join_ratio": 1.0, "random_join": False}
    resolved = assembly.resolve(run.resolved.method, values, s.model)
    experiment = Experiment(
        run.resolved.method, dataset=plan.dataset, partition=partition, resolved=resolved, log=lambda _: None
    )
    try:
        records: list[dict[str, Any]] = []
        for record in islice(experiment.rounds(), ROUNDS):
            records.append(record)
            if sum(found["seconds"] for found in records) > SECONDS:
                break
    finally:
        experiment.close()
    laps = min(records, key=lambda record: float(record["seconds"]))["seconds_by_part"]
    trained, tested = (sum(map(len, samples)) for samples in parts[:2])
    pace = Pace(
        training=(laps["data"] + laps["local"]) / trained,
        tests=(laps.get("test_local", 0.0) + laps.get("test_aggregated", 0.0)) / max(1, tested),
        client=sum(v for n, v in laps.items() if n in ("aggregate", "distribute")) / len(chosen),
    )
    phases = experiment.method.phases(2)
    epochs = [sum(phase.epochs for phase in found) for found in (experiment.method.final_phases(), phases)]
    return pace, epochs[0] / max(1, epochs[1])
