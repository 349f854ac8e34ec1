"""Sections of a report: charts and tables of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pfl_fast.engine.results.records import TEST_ACCURACIES
from pfl_fast.report.charts import Chart, stacked_bar
from pfl_fast.report.clients import class_charts, client_charts, partition_charts
from pfl_fast.report.quantities import against, metric_charts, own_charts, record_cost
from pfl_fast.report.stored_run import StoredRun


@dataclass(frozen=True)
class Fact:
    """A row of a table with one column for each run.

    Attributes:
        name: head of the row.
        values: text for each run.
    """

    name: str
    values: Sequence[str]

    @property
    def differs(self) -> bool:
        """True if two runs have different values."""
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class Section:
    """A section of the report.

    Attributes:
        key: name in links.
        title: heading.
        charts: drawings.
        facts: table with one column for each run.
        note: text below the heading.
        filtered: True for a table that can be reduced to the rows that differ.
        warns: True if the note is a warning.
    """

    key: str
    title: str
    charts: Sequence[Chart] = ()
    facts: Sequence[Fact] = ()
    note: str = ""
    filtered: bool = False
    warns: bool = False


def sections(runs: Sequence[StoredRun]) -> list[Section]:
    """Returns all sections that have content."""
    found = [
        Section("overview", "Overview", facts=overview(runs), note=differences(runs), warns=True),
        Section("accuracy", "Accuracy and other metrics", metric_charts(runs, loss=False)),
        Section("loss", "Loss", metric_charts(runs, loss=True)),
        Section("clients", "Clients", client_charts(runs)),
        Section("classes", "Classes", class_charts(runs)),
        Section("partition", "Partition", partition_charts(runs)),
        Section("quantities", "Quantities of the method", own_charts(runs)),
        Section("time", "Time", time_charts(runs)),
        Section("traffic", "Traffic", _present([against(runs, "megabytes", "MB sent by and to clients")])),
        Section("configuration", "Configuration", facts=configuration(runs), filtered=len(runs) > 1),
        Section("environment", "Environment", facts=environment(runs)),
    ]
    return [section for section in found if section.charts or section.facts]


def overview(runs: Sequence[StoredRun]) -> list[Fact]:
    """Returns data, results, speed and traffic of each run."""
    rows: dict[str, list[str]] = {}
    for run in runs:
        for name, value in _summary(run).items():
            rows.setdefault(name, []).append(value)
    return [Fact(name, values) for name, values in rows.items()]


def _summary(run: StoredRun) -> dict[str, str]:
    measured = run.summary.get("protocol") or {}
    trained = [record for record in run.records if record.get("samples")]
    sizes = run.partition.get("sizes", {}).get("train", [])
    hash_ = str(run.partition.get("hash", ""))[:12]
    megabytes = sum(record_cost(record, "megabytes", run.bytes_per_value) for record in run.records)
    return {
        "data": f"{run.settings['dataset']} ({run.source})",
        "partition": f"{run.partition.get('rule', '')}, {len(sizes)} clients, hash {hash_}",
        "rounds": f"{run.rounds_done} of {run.settings['rounds']} ({run.state})",
        "accuracy by the protocol": _number(measured.get("accuracy")),
        "protocol": ", ".join(str(measured[n]) for n in ("name", "point", "reduction", "selection") if n in measured),
        **{f"{t}, best / last": _best_and_last(run, n) for n, t in zip(TEST_ACCURACIES, _TITLES, strict=True)},
        "seconds per round": _number(fmean(r["seconds"] for r in trained) if trained else None),
        "sent by and to clients": f"{megabytes:,.1f} MB",
        "folder": str(run.folder),
    }


_TITLES = ("accuracy after aggregation", "accuracy after local training")


def _best_and_last(run: StoredRun, name: str) -> str:
    values = [r[name] for r in run.records if r.get(name) is not None and r["round"] > 0]
    return f"{max(values):.4f} / {values[-1]:.4f}" if values else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def differences(runs: Sequence[StoredRun]) -> str:
    """Returns a warning if the runs have different data or partitions, which makes accuracies incomparable."""
    data = {(str(run.settings["dataset"]), run.source) for run in runs}
    hashes = {run.partition.get("hash") for run in runs}
    differing = [name for name, found in (("data", data), ("partition", hashes)) if len(found) > 1]
    return f"These runs differ in {' and '.join(differing)}: do not compare their accuracies." if differing else ""


def time_charts(runs: Sequence[StoredRun]) -> list[Chart]:
    """Returns the mean seconds of the parts of a round, and accuracy against time."""
    parts = []
    for run in runs:
        found = [r["seconds_by_part"] for r in run.records if r.get("samples") and r.get("seconds_by_part")]
        names = dict.fromkeys(name for each in found for name in each)
        parts.append({name: fmean(each.get(name, 0.0) for each in found) for name in names})
    names_ = list(dict.fromkeys(name for found in parts for name in found))
    longest = max((sum(found.values()) for found in parts), default=0.0)
    charts = [
        stacked_bar(f"{run.label}: mean seconds of a round, {sum(found.values()):.3g} s", found, names_, longest, n)
        for n, (run, found) in enumerate(zip(runs, parts, strict=True))
        if found
    ]
    return [*charts, *_present([against(runs, "seconds", "seconds of rounds")])]


def configuration(runs: Sequence[StoredRun]) -> list[Fact]:
    """Returns all settings and options."""
    names = dict.fromkeys(["method", *(name for run in runs for name in run.settings)])
    return [Fact(name, [_setting(run.settings.get(name)) for run in runs]) for name in names]


def environment(runs: Sequence[StoredRun]) -> list[Fact]:
    """Returns versions and hardware; empty for runs of earlier versions."""
    found = [run.about.get("environment") or {} for run in runs]
    names = dict.fromkeys(name for each in found for name in each)
    return [Fact(name, [_setting(each.get(name)) for each in found]) for name in names]


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _present(charts: Sequence[Chart | None]) -> list[Chart]:
    return [chart for chart in charts if chart]
