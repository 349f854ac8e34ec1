"""What is known about a round, as plain numbers: one JSON object, and one row per client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import fmean
from time import perf_counter
from typing import Any

from pfl_fast.engine.local.progress import LocalReport
from pfl_fast.engine.results.metrics import Score, Summary, last_mean, summarise
from pfl_fast.engine.sampling import Cohort
from pfl_fast.engine.state.part_table import PartTable

Scores = Mapping[int, Mapping[str, Score]]  # by client, by split


class Stopwatch:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._begin = perf_counter()

    def lap(self, name: str) -> None:
        """Since the last lap, under ``name``."""
        now = perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._begin
        self._begin = now


@dataclass
class RoundRecord:
    """One round.

    Attributes:
        round: its number, from 1; 0 is the untrained model.
        evaluated: whether models were tested.
        cohort: who took part.
        skipped: clients left out because something was not finite.
        values: the JSON object of the round.
        clients: by client, the row of the round.
    """

    round: int
    evaluated: bool
    cohort: Cohort
    skipped: list[int]
    values: dict[str, Any] = field(default_factory=dict)
    clients: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add_local_results(self, reports: Mapping[int, LocalReport], scores: Scores) -> None:
        """Takes over what clients said after local training."""
        good = {c: r for c, r in sorted(reports.items()) if r.steps and c not in self.skipped}
        samples = sum(r.samples for r in good.values())
        self.values["train_loss"] = sum(r.loss * r.samples for r in good.values()) / samples if samples else None
        names = dict.fromkeys(name for r in good.values() for name in r.recorded)
        for name in names:
            self.values[name] = sum(r.recorded.get(name, 0.0) * r.samples for r in good.values()) / samples
        self.values["samples"] = samples
        self.values["not_finite"] = sorted(client for client, report in reports.items() if report.problem)
        self.values["data_seconds"] = sum(r.data_seconds for r in reports.values())
        for client, report in good.items():
            self._row(client).update(train_loss=report.loss, **report.recorded)
        self._scores("after_local", scores)

    def after_agg(self, scores: Scores) -> None:
        """Takes over tests after aggregation."""
        self._scores("after_agg", scores)

    def global_score(self, score: Score | None) -> None:
        """Takes over the test of the server's model."""
        self.values["global_accuracy"] = score.accuracy if score else None

    def add_traffic(self, part_table: PartTable, cohort: Cohort, clients: int, round: int) -> None:
        """Counts the numbers sent up and down in this round."""
        up = {e.upload_to: e.value.numel() for e in part_table.uploaded if e.exchanged(round)}
        down = {e.receive_from: e.value.numel() for e in part_table.received if e.exchanged(round)}
        mixed = sum(e.value.numel() * part_table.parts[e.part].mixture_size for e in part_table.mixed)
        to_all = {e.receive_from for e in part_table.received if part_table.parts[e.part].recipients == "all"}
        everyone = clients if len(cohort.receiving) == clients else len(cohort.training)
        sent = sum(n * (clients if name in to_all else everyone) for name, n in down.items())
        self.values["uploaded"] = len(cohort.uploading) * sum(up.values())
        self.values["downloaded"] = sent + len(cohort.uploading) * mixed

    def finish(self, laps: Mapping[str, float], workers: int) -> RoundRecord:
        """Takes over how long things took, and puts the numbers in order."""
        data = self.values.pop("data_seconds", 0.0) / workers
        seconds = dict(laps)
        if "local" in seconds:
            seconds = {"data": data, **seconds, "local": max(seconds["local"] - data, 0.0)}
        total = sum(seconds.values())
        local = laps.get("local", 0.0)
        self.values = {
            "round": self.round,
            **{name: self.values.pop(name, None) for name in HEADLINE},
            **self.values,
            "clients_trained": len(self.cohort.training),
            "skipped": self.skipped,
            "seconds": total,
            "seconds_by_part": seconds,
            "samples_per_second": self.values.get("samples", 0) / local if local else None,
        }
        # JSON has no NaN: what has no value is missing.
        self.values = {n: None if isinstance(v, float) and not isfinite(v) else v for n, v in self.values.items()}
        return self

    def _row(self, client: int) -> dict[str, Any]:
        return self.clients.setdefault(client, {})

    def _scores(self, when: str, scores: Scores) -> None:
        scores = dict(sorted(scores.items()))  # sums must not depend on who was done first
        for client, by_split in scores.items():
            for split, score in by_split.items():
                if score.samples:
                    measured = {f"{split}_accuracy_{when}": score.accuracy, f"{split}_samples": score.samples}
                    self._row(client).update(measured, **{f"{split}_auc": score.auc, f"{split}_loss": score.loss})
        for split in dict.fromkeys(split for by_split in scores.values() for split in by_split):
            summary = summarise(by_split[split] for by_split in scores.values() if split in by_split)
            self.values.update(_named(summary, split, when))


HEADLINE = ("test_accuracy_after_agg", "test_accuracy_after_local", "test_auc", "train_loss")


def _named(summary: Summary, split: str, when: str) -> dict[str, Any]:
    """``test_accuracy_after_agg`` and the like; AUC and loss are the last ones measured."""
    return {
        f"{split}_accuracy_{when}": summary.by_sample,
        f"{split}_accuracy_{when}_by_client": summary.by_client,
        f"{split}_accuracy_{when}_std": summary.spread,
        f"{split}_auc": summary.auc,
        f"{split}_loss": summary.loss,
    }


Bests = dict[str, dict[int, float]]  # by accuracy, by client


def keep_bests(bests: Bests, record: RoundRecord) -> None:
    """Takes over what a client was better at than ever before."""
    for client, row in record.clients.items() if record.round > 0 else ():
        for name in (n for n in row if n.startswith("test_accuracy")):
            of_all = bests.setdefault(name, {})
            of_all[client] = max(row[name], of_all.get(client, 0.0))


def summarise_run(records: Sequence[Mapping[str, Any]], bests: Bests, about: Mapping[str, Any]) -> dict[str, Any]:
    """Best, last and mean of the last five of each accuracy over evaluated rounds, and the one validation chooses.

    The best is that of the round with the best number of all clients together; ``best_per_client`` is the mean over
    clients of each one's own best round.
    """
    result: dict[str, Any] = {**about, "rounds": records[-1]["round"] if records else 0}
    accuracies = [n for r in records for n in r if n.startswith(("test_accuracy", "global_accuracy"))]
    for name in dict.fromkeys(n for n in accuracies if not n.endswith("_std")):
        series = [(r["round"], r[name]) for r in records if r.get(name) is not None and r["round"] > 0]
        if series:
            best_round, best = max(series, key=lambda item: (item[1], -item[0]))
            values = [value for _, value in series]
            result[name] = {"best": best, "best_round": best_round, "last": values[-1], "last5": last_mean(values)}
            if name in bests:
                result[name]["best_per_client"] = fmean(bests[name].values())
            if name.startswith("test_"):
                result[name].update(_chosen_by_validation(records, name))
    trained = [r for r in records if r.get("samples")]
    if trained:
        result["seconds_per_round"] = fmean(r["seconds"] for r in trained)
        result["samples_per_second"] = fmean(r["samples_per_second"] for r in trained)
        result["uploaded"] = sum(r["uploaded"] for r in trained)
        result["downloaded"] = sum(r["downloaded"] for r in trained)
    return result


def _chosen_by_validation(records: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    guide = name.replace("test_", "validation_", 1)
    chosen = [r for r in records if r.get(guide) is not None and r.get(name) is not None and r["round"] > 0]
    if not chosen:
        return {}
    best = max(chosen, key=lambda r: (r[guide], -r["round"]))
    return {"validation_selected": best[name], "validation_round": best["round"]}
