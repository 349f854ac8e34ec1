"""Names of the recorded values of a round, sorted into charts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pfl_fast.engine.results.records import TEST_ACCURACIES
from pfl_fast.report.charts import Chart, Series, curves
from pfl_fast.report.stored_run import StoredRun

WHEN = {"after_agg": "after aggregation", "after_local": "after local training", "global": "of the server's model"}
MEASURED = re.compile(r"(test|validation)_(\w+?)_(after_agg|after_local|global)")
SUMMARIES = ("_by_client", "_std")
OTHER = {"round", "samples", "clients_trained", "uploaded_values", "downloaded_values", "seconds", "samples_per_second"}
WITH_BANDS = 3  # runs whose bands can be told apart in one chart
SPREAD_NOTE = "Band: standard deviation over clients."


def measured_title(name: str) -> str | None:
    """Returns the title of a metric's chart, None for other values.

    >>> measured_title("test_accuracy_after_agg"), measured_title("test_auc_global")
    ('Test accuracy after aggregation', "Test AUC of the server's model")
    """
    found = MEASURED.fullmatch(name)
    if found is None:
        return None
    split, metric, when = found.groups()
    shown = "AUC" if metric == "auc" else metric.replace("_", " ")
    return f"{split.capitalize()} {shown} {WHEN[when]}"


def names_of(runs: Sequence[StoredRun]) -> list[str]:
    """Returns the names of all values that are numbers in some round, in their order."""
    records = [record for run in runs for record in run.records]
    return list(dict.fromkeys(name for record in records for name, value in record.items() if is_number(value)))


def is_number(value: Any) -> bool:
    """Returns whether a value is a number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def metric_charts(runs: Sequence[StoredRun], loss: bool) -> list[Chart]:
    """Returns the curves of the losses, or of all other metrics, accuracies first."""
    titles = {name: title for name in names_of(runs) if (title := measured_title(name))}
    if loss:
        titles = {"train_loss": "Training loss", **titles}
    chosen = [name for name in titles if ("_loss" in name) == loss]
    chosen.sort(key=lambda name: (not name.startswith(("test_accuracy", "train")), name))
    charts = [_chart(runs, name, titles[name]) for name in chosen]
    return [chart for chart in charts if chart]


def own_charts(runs: Sequence[StoredRun]) -> list[Chart]:
    """Returns the curves of the scalars that a method's loss returns."""
    names = [n for n in names_of(runs) if n not in OTHER and n != "train_loss" and not n.endswith(SUMMARIES)]
    charts = [_chart(runs, name, name) for name in names if not measured_title(name)]
    return [chart for chart in charts if chart]


def _chart(runs: Sequence[StoredRun], name: str, title: str) -> Chart | None:
    series = [_series(number, run, name) for number, run in enumerate(runs)]
    series = [one for one in series if one.points]
    if len(series) > WITH_BANDS:
        series = [replace(one, spread=()) for one in series]
    note = SPREAD_NOTE if any(one.spread for one in series) else ""
    return curves(title, series, "communication round", title.split(" ", 1)[-1], note) if series else None


def _series(number: int, run: StoredRun, name: str) -> Series:
    records = [record for record in run.records if is_number(record.get(name))]
    spread = [record.get(f"{name}_std") for record in records]
    known = [float(value) for value in spread if value is not None]
    points = [(record["round"], float(record[name])) for record in records]
    return Series(number, run.label, points, known if len(known) == len(points) else ())


def against(runs: Sequence[StoredRun], cost: str, x_title: str) -> Chart | None:
    """Returns the accuracy of each run against its cost up to each round.

    Args:
        runs: the runs.
        cost: ``"seconds"``, or ``"megabytes"`` for values sent by and to clients.
        x_title: name of the cost.
    """
    series = []
    for number, run in enumerate(runs):
        name = next((n for n in TEST_ACCURACIES if any(is_number(r.get(n)) for r in run.records)), "")
        total, points = 0.0, []
        for record in run.records:
            total += record_cost(record, cost, run.bytes_per_value)
            if is_number(record.get(name)):
                points.append((total, float(record[name])))
        if points:
            series.append(Series(number, run.label, points))
    return curves(f"Test accuracy against {x_title}", series, x_title, "accuracy") if series else None


def record_cost(record: Mapping[str, Any], cost: str, bytes_per_value: int) -> float:
    """Returns seconds, or megabytes sent, of a round."""
    if cost == "seconds":
        return float(record.get("seconds") or 0)
    return sum(record.get(name) or 0 for name in ("uploaded_values", "downloaded_values")) * bytes_per_value / 1e6
