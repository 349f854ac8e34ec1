"""Results of a round as plain numbers: one JSON object, and one row per client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import fmean
from time import perf_counter
from typing import Any

from pfl_fast.engine.client_results import Bests, LocalReport, Score, Scores
from pfl_fast.engine.results.metrics import summarise
from pfl_fast.engine.sampling import Cohort
from pfl_fast.engine.state.part_table import PartTable


class Stopwatch:
    """Measures the seconds of consecutive steps.

    Attributes:
        laps: seconds by name of the step.
    """

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._begin = perf_counter()

    def lap(self, name: str) -> None:
        """Adds the seconds since the last lap to ``name``."""
        now = perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._begin
        self._begin = now


@dataclass
class RoundRecord:
    """Results of one round.

    Attributes:
        round: number of the round, from 1; 0 is the untrained model.
        evaluated: True if models were tested.
        cohort: clients of the round.
        skipped: clients left out because their loss or parameters were not finite.
        values: JSON object of the round, a line of ``metrics.jsonl``.
        clients: rows of ``clients.csv``, by client.
    """

    round: int
    evaluated: bool
    cohort: Cohort
    skipped: list[int]
    values: dict[str, Any] = field(default_factory=dict)
    clients: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add_local_results(self, reports: Mapping[int, LocalReport], scores: Scores) -> None:
        """Adds the reports of local training and the scores after it."""
        good = {c: r for c, r in sorted(reports.items()) if r.steps and c not in self.skipped}
        samples = sum(r.samples for r in good.values())
        self.values["train_loss"] = sum(r.loss * r.samples for r in good.values()) / samples if samples else None
        names = dict.fromkeys(name for r in good.values() for name in r.recorded)
        for name in names:
            self.values[name] = sum(r.recorded.get(name, 0.0) * r.samples for r in good.values()) / samples
        self.values["samples"] = samples
        self.values["not_finite"] = sorted(client for client, report in reports.items() if report.problem)
        self.values["data_seconds"] = sum(r.data_seconds for r in reports.values())
        self.values["test_seconds"] = sum(r.test_seconds for r in reports.values())
        for client, report in good.items():
            self._row(client).update(train_loss=report.loss, seconds=report.seconds, recorded=dict(report.recorded))
        self._add_scores("after_local", scores)

    def add_scores_after_aggregation(self, scores: Scores | None, global_score: Score | None) -> None:
        """Adds the scores of clients and of the server's model; nothing in rounds without this test."""
        if scores is not None:
            self._add_scores("after_agg", scores)
            self.values["test_accuracy_global"] = None
            found = global_score.metrics if global_score else {}
            self.values.update({f"test_{name}_global": value for name, value in found.items()})

    def add_traffic(self, part_table: PartTable, cohort: Cohort, clients: int, round: int) -> None:
        """Adds the numbers of values uploaded and downloaded in this round."""
        up = {e.upload_to: e.value.numel() for e in part_table.uploaded if e.exchanged(round)}
        down = {e.receive_from: e.value.numel() for e in part_table.received if e.exchanged(round)}
        mixed = sum(e.value.numel() * part_table.parts[e.part].mixture_size for e in part_table.mixed)
        to_all = {e.receive_from for e in part_table.received if part_table.parts[e.part].recipients == "all"}
        everyone = clients if len(cohort.receiving) == clients else len(cohort.training)
        sent = sum(n * (clients if name in to_all else everyone) for name, n in down.items())
        self.values["uploaded_values"] = len(cohort.uploading) * sum(up.values())
        self.values["downloaded_values"] = sent + len(cohort.uploading) * mixed

    def finish(self, laps: Mapping[str, float], workers: int) -> RoundRecord:
        """Adds the seconds and puts the values in their final order.

        Args:
            laps: seconds of the round by step. ``local`` includes loading data and testing after local training, which
                workers measure themselves; they become steps of their own.
            workers: number of units that ran at once.
        """
        data, test = (self.values.pop(name, 0.0) / workers for name in ("data_seconds", "test_seconds"))
        seconds, training = dict(laps), 0.0
        if "local" in laps:
            # Workers may wait for each other, so that their seconds add up to more than the lap.
            test = min(test, laps["local"])
            training = laps["local"] - test
            data = min(data, training)
            seconds = {"data": data, "local": training - data, "test_local": test}
            seconds |= {name: lap for name, lap in laps.items() if name != "local"}
        self.values = {
            "round": self.round,
            **{name: self.values.pop(name, None) for name in HEADLINE},
            **self.values,
            "clients_trained": len(self.cohort.training),
            "skipped": self.skipped,
            "seconds": sum(seconds.values()),
            "seconds_by_part": seconds,
            "samples_per_second": self.values.get("samples", 0) / training if training else None,
        }
        # JSON has no NaN.
        self.values = {n: None if isinstance(v, float) and not isfinite(v) else v for n, v in self.values.items()}
        return self

    def _row(self, client: int) -> dict[str, Any]:
        return self.clients.setdefault(client, {})

    def _add_scores(self, when: str, scores: Scores) -> None:
        scores = dict(sorted(scores.items()))  # sums must not depend on the order in which clients finish
        for client, by_split in scores.items():
            for split, score in by_split.items():
                if score.samples:
                    self._row(client)[f"{split}_samples"] = score.samples
                    self._row(client).update({f"{split}_{name}_{when}": v for name, v in score.metrics.items()})
        for split in dict.fromkeys(split for by_split in scores.values() for split in by_split):
            summary = summarise(by_split[split] for by_split in scores.values() if split in by_split)
            self.values[f"{split}_accuracy_{when}"] = summary.by_sample
            self.values[f"{split}_accuracy_{when}_by_client"] = summary.by_client
            self.values[f"{split}_accuracy_{when}_std"] = summary.spread
            self.values.update({f"{split}_{name}_{when}": value for name, value in summary.metrics.items()})


TEST_ACCURACIES = ("test_accuracy_after_agg", "test_accuracy_after_local")
HEADLINE = (*TEST_ACCURACIES, "test_auc_after_agg", "train_loss")


def keep_bests(bests: Bests, record: RoundRecord) -> None:
    """Updates the best test accuracies of each client."""
    for client, row in record.clients.items() if record.round > 0 else ():
        for name in row.keys() & TEST_ACCURACIES:
            of_all = bests.setdefault(name, {})
            of_all[client] = max(row[name], of_all.get(client, 0.0))


def summarise_run(records: Sequence[Mapping[str, Any]], bests: Bests, about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns best, last and mean of the last five of each accuracy over evaluated rounds.

    With validation samples, also the accuracy in the round with the best validation accuracy.

    ``best`` is the best mean over clients; ``best_per_client`` is the mean over clients of each client's own best.

    Args:
        records: JSON objects of the rounds.
        bests: best accuracies of each client.
        about: entries to put first.
    """
    result: dict[str, Any] = {**about, "rounds": records[-1]["round"] if records else 0}
    summarised = [*TEST_ACCURACIES, *(f"{name}_by_client" for name in TEST_ACCURACIES), "test_accuracy_global"]
    for name in dict.fromkeys(n for r in records for n in r if n in summarised):
        series = [(r["round"], r[name]) for r in records if r.get(name) is not None and r["round"] > 0]
        if series:
            best_round, best = max(series, key=lambda item: (item[1], -item[0]))
            values = [value for _, value in series]
            result[name] = {"best": best, "best_round": best_round, "last": values[-1], "last5": fmean(values[-5:])}
            if name in bests:
                result[name]["best_per_client"] = fmean(bests[name].values())
            if name.startswith("test_"):
                result[name].update(_chosen_by_validation(records, name))
    trained = [r for r in records if r.get("samples")]
    if trained:
        result["seconds_per_round"] = fmean(r["seconds"] for r in trained)
        paces = [r["samples_per_second"] for r in trained if r["samples_per_second"] is not None]
        result["samples_per_second"] = fmean(paces) if paces else 0.0
        for name in ("uploaded_values", "downloaded_values"):
            result[name] = sum(r[name] for r in trained)
    return result


def _chosen_by_validation(records: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    guide = name.replace("test_", "validation_", 1)
    chosen = [r for r in records if r.get(guide) is not None and r.get(name) is not None and r["round"] > 0]
    if not chosen:
        return {}
    best = max(chosen, key=lambda r: (r[guide], -r["round"]))
    return {"validation_selected": best[name], "validation_round": best["round"]}
