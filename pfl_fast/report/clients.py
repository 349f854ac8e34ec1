"""Charts of clients and classes: accuracies in the last tests, and the samples of each client and class."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pfl_fast.engine.results.records import TEST_ACCURACIES
from pfl_fast.report.charts import Chart, Series, bars, bubbles, curves
from pfl_fast.report.stored_run import StoredRun

MOST_BARS = 120  # clients or classes; more clients are drawn as a sorted curve
MOST_CLIENTS = 200  # clients with bubbles
PER_CLASS = ("test_per_class_accuracy_after_agg", "test_per_class_accuracy_after_local")


def client_charts(runs: Sequence[StoredRun]) -> list[Chart]:
    """Returns the accuracies of the clients in their last tests: bars, or sorted curves of many clients."""
    found = [(number, run, accuracies) for number, run in enumerate(runs) if (accuracies := client_accuracies(run))]
    if any(len(accuracies) > MOST_BARS for _, _, accuracies in found):
        series = [Series(n, run.label, list(enumerate(sorted(values.values()), 1))) for n, run, values in found]
        return [curves("Test accuracy of each client, sorted", series, "clients, sorted by accuracy", "accuracy")]
    return [bars(f"{run.label}: test accuracy of each client", values, n, "accuracy", 1.0) for n, run, values in found]


def client_accuracies(run: StoredRun) -> dict[str, float]:
    """Returns the accuracy of each client in its last test, by name."""
    found: dict[str, float] = {}
    for client, row in sorted(run.last_tests.items()):
        name = row.get("client_name") or f"client {client}"
        name = f"{name} ({client})" if name in found else name
        found[name] = float(next(row[column] for column in TEST_ACCURACIES if row.get(column)))
    return found


def class_charts(runs: Sequence[StoredRun]) -> list[Chart]:
    """Returns accuracies of the classes, if recorded, and the training samples of each class."""
    charts = []
    for number, run in enumerate(runs):
        accuracies = class_accuracies(run)
        if accuracies and len(accuracies) <= MOST_BARS:
            charts.append(bars(f"{run.label}: test accuracy of each class", accuracies, number, "accuracy", 1.0))
    for owner, prefix, run in partitions(runs):
        classes, clients = _samples(run)
        if clients and len(classes) <= MOST_BARS:
            totals = [sum(client["train"].get(str(label), 0) for client in clients) for label in range(len(classes))]
            values = dict(zip(classes, totals, strict=True))
            charts.append(bars(f"{prefix}training samples of each class", values, owner, "training samples"))
    return charts


def class_accuracies(run: StoredRun) -> dict[str, float]:
    """Returns correct / all test samples of each class; empty without ``--metric per_class_accuracy``."""
    classes, clients = _samples(run)
    correct, samples = [0.0] * len(classes), [0] * len(classes)
    for client, row in run.last_tests.items() if clients else ():
        text = next((row[name] for name in PER_CLASS if row.get(name)), "[]")
        for label, accuracy in enumerate(json.loads(text)):
            if accuracy is not None:
                count = clients[client]["test"].get(str(label), 0)
                correct[label] += accuracy * count
                samples[label] += count
    return {name: right / n for name, right, n in zip(classes, correct, samples, strict=True) if n}


def partition_charts(runs: Sequence[StoredRun]) -> list[Chart]:
    """Returns the bubbles of each partition."""
    charts = []
    for owner, prefix, run in partitions(runs):
        classes, clients = _samples(run)
        if not clients:
            continue
        shown = clients[:MOST_CLIENTS]
        left_out = f"; first {len(shown)} of {len(clients):,} clients" if len(shown) < len(clients) else ""
        counts = [{int(label): n for label, n in client["train"].items()} for client in shown]
        names = [client["client_name"] for client in shown]
        title = f"{prefix}training samples of each client and class{left_out}"
        charts.append(bubbles(title, counts, names, classes, owner))
    return charts


def partitions(runs: Sequence[StoredRun]) -> list[tuple[int | None, str, StoredRun]]:
    """Returns each partition once: number of its run (None: several runs), prefix of titles, one of its runs."""
    groups: dict[Any, list[int]] = {}
    for number, run in enumerate(runs):
        groups.setdefault(run.partition.get("hash"), []).append(number)
    return [
        (
            numbers[0] if len(groups) > 1 and len(numbers) == 1 else None,
            f"{', '.join(runs[number].label for number in numbers)}: " if len(groups) > 1 else "",
            runs[numbers[0]],
        )
        for numbers in groups.values()
    ]


def _samples(run: StoredRun) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the names of the classes, and of each client its name and samples by class."""
    return list(run.about.get("dataset", {}).get("classes", [])), list(run.about.get("clients", []))
