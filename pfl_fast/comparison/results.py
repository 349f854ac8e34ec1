"""Results of finished runs, checked to be comparable, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pfl_fast import config
from pfl_fast.comparison.plan import ComparisonPlan
from pfl_fast.config import NOT_IN_RESULTS, Settings
from pfl_fast.engine.results.protocol import Measurement, Protocol, find_protocol, measure, read_tests
from pfl_fast.engine.results.run_folder import check_results, read_summary
from pfl_fast.engine.state import checkpoint
from pfl_fast.errors import ConfigError, PflFastError
from pfl_fast.methods import METHODS
from pfl_fast.options import plain

SETTINGS = {f.name: plain(f.default) for f in fields(Settings)}
# Settings that may differ within a row, or are compared through the hash of the partition.
NOT_COMPARED = (NOT_IN_RESULTS - {"rounds"}) | {"seed", "partition", "partition_seed"}


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        label: row of the table that the run belongs to.
        folder: run folder.
        seed: seed of the run.
        summary: contents of ``summary.json``.
        settings: settings that are compared, those of the method's options included.
        measured: accuracy by the protocol of the comparison.
    """

    label: str
    folder: Path
    seed: int
    summary: Mapping[str, Any]
    settings: Mapping[str, Any]
    measured: Measurement


@dataclass
class Row:
    """The runs of one method with the same options.

    Attributes:
        label: name of the row.
        runs: finished runs by seed.
        failures: error messages of the other runs, by seed.
    """

    label: str
    runs: dict[int, Run] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def statistics(self, domain: str | None = None) -> tuple[float, float | None] | None:
        """Returns mean and sample standard deviation over seeds (None for one seed), of all data or of one domain."""
        measured = [run.measured for run in self.runs.values()]
        values = [m.accuracy if domain is None else m.domains[domain] for m in measured if not domain or m.domains]
        if not values:
            return None
        return fmean(values), stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Comparison:
    """Rows of a table that may stand side by side.

    Attributes:
        rows: the rows.
        data: name and source of the data set.
        partition: description of the partition.
        protocol: rules for the accuracies.
        notes: remarks below the table.
    """

    rows: list[Row]
    data: str
    partition: str
    protocol: Protocol
    notes: list[str]

    @property
    def domains(self) -> list[str]:
        """Names of the domains, if the protocol reduces by domains."""
        found = [name for row in self.rows for run in row.runs.values() for name in run.measured.domains]
        return list(dict.fromkeys(found)) if self.protocol.reduction == "domains" else []

    @property
    def seeds(self) -> list[int]:
        """All seeds."""
        return sorted({seed for row in self.rows for seed in (*row.runs, *row.failures)})


def is_finished(folder: Path) -> bool:
    """Returns whether all rounds of a run are done."""
    return bool(read_summary(folder).get("finished"))


def is_complete(folder: Path) -> bool:
    """Returns whether all rounds of a run are done, and its result files have them."""
    try:
        check_results(folder)
    except PflFastError:
        return False
    return is_finished(folder)


def read_run(folder: Path, protocol: Protocol, label: str = "") -> Run:
    """Reads a finished run and applies a protocol to it."""
    if not (folder / "config.toml").is_file():
        raise ConfigError(f"{folder}: holds no run (config.toml is missing)")
    if not is_finished(folder):
        raise ConfigError(
            f"{folder}: the run is not finished, or its summary.json is damaged; pfl-fast resume {folder} continues it"
        )
    check_results(folder)
    info = checkpoint.newest_info(folder / "checkpoint")
    values = config.read_of_run(folder / "config.toml", info.config if info else None, log=lambda _: None)
    settings, summary = {**SETTINGS, **values}, read_summary(folder)
    measured = measure(protocol, read_tests(folder, protocol), settings["rounds"])
    if measured is None:
        raise ConfigError(f"{folder}: has no accuracy by protocol {protocol.name} ({protocol})")
    compared = {name: value for name, value in settings.items() if name not in NOT_COMPARED}
    return Run(label, folder, settings["seed"], summary, compared, measured)


def read_runs(folders: Sequence[Path], protocol: str | None) -> tuple[list[Run], Protocol]:
    """Reads finished runs and labels them by method and by the settings in which runs of one method differ.

    Args:
        folders: run folders, or folders of comparisons for all their runs.
        protocol: name of the protocol; None: that of the runs, which must be the same.
    """
    each = run_folders(folders)
    own = {folder: find_protocol(protocol) if protocol else _own_protocol(folder) for folder in each}
    refuse_different("protocol", {str(folder): str(found) for folder, found in own.items()}, "choose one by --protocol")
    chosen = next(iter(own.values()))
    runs = [read_run(folder, chosen) for folder in each]
    named = zip(runs, labels([run.settings for run in runs]), strict=True)
    return [replace(run, label=label) for run, label in named], chosen


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """Returns run folders, with folders of comparisons replaced by those of their runs."""
    return [run for folder in folders for run in (sorted((folder / "runs").glob("*/")) or [folder])]


def compare(
    runs: Iterable[Run], protocol: Protocol, failures: Mapping[tuple[str, int], str], labels: Iterable[str] = ()
) -> Comparison:
    """Returns the table of runs, or raises if the runs differ in data, data source or partition.

    Args:
        runs: finished runs.
        protocol: protocol of their accuracies.
        failures: error messages by label and seed.
        labels: labels of all rows, in the order of the table.
    """
    runs = list(runs)
    rows = {label: Row(label) for label in dict.fromkeys([*labels, *(run.label for run in runs)])}
    data = {str(run.folder): f"{run.summary['dataset']} ({run.summary['data']})" for run in runs}
    refuse_different("data", data, "compare runs on the same data")
    for run in runs:
        if run.seed in rows[run.label].runs:
            other = rows[run.label].runs[run.seed].folder
            raise ConfigError(f"{run.folder} and {other} have the same settings and seed; leave one out")
        rows[run.label].runs[run.seed] = run
    for (label, seed), message in failures.items():
        rows[label].failures[seed] = message
    partition = _same_partition(runs, list(rows.values()))
    return Comparison(list(rows.values()), next(iter(data.values()), ""), partition, protocol, _notes(runs))


def finished_runs(plan: ComparisonPlan, failures: Mapping[tuple[str, int], str]) -> Comparison | None:
    """Returns the table of the finished runs of a plan; None if there is none."""
    finished = [read_run(run.folder, run.protocol, run.label) for run in plan.runs if is_finished(run.folder)]
    if not finished:
        return None
    comparison = compare(finished, plan.protocol, failures, [run.label for run in plan.runs])
    comparison.notes.extend(f"default of a method, taken by all: {note}" for note in plan.notes)
    return comparison


def refuse_different(what: str, values: Mapping[str, str], remedy: str) -> None:
    """Raises if the values of some runs differ."""
    groups: dict[str, list[str]] = {}
    for run, value in values.items():
        groups.setdefault(value, []).append(run)
    if len(groups) > 1:
        shown = "\n".join(f"  {value}: {', '.join(found)}" for value, found in groups.items())
        raise ConfigError(f"these runs cannot be compared, they differ in {what}:\n{shown}\n{remedy}")


def _same_partition(runs: Sequence[Run], rows: Sequence[Row]) -> str:
    """Returns a description of the partition. Runs of one seed must share it."""
    hashes = {run.summary["partition_hash"] for run in runs}
    for seed in {run.seed for run in runs} if len(hashes) > 1 else ():
        of_seed = {str(run.folder): run.summary["partition_hash"] for run in runs if run.seed == seed}
        refuse_different(f"partition at seed {seed}", of_seed, "train with --partition RUN/partition of another run")
    seeds = {row.label: " ".join(map(str, sorted({*row.runs, *row.failures}))) for row in rows}
    if len(hashes) > 1:
        refuse_different("seeds and partitions", seeds, "leave out the other seeds")
    rule = " and ".join(sorted({f"{run.summary['partition']}, {run.summary['clients']} clients" for run in runs}))
    which = "one for each seed" if len(hashes) > 1 else f"one for all seeds, hash {''.join(hashes)[:12]}"
    return f"{rule}, {which}"


def _notes(runs: Sequence[Run]) -> list[str]:
    """Returns the settings that differ between rows and are not in their labels, and rows with a final fine-tune."""
    notes = []
    for name in SETTINGS.keys() - NOT_COMPARED:
        values: dict[str, list[str]] = {}
        for run in runs:
            values.setdefault(str(run.settings[name]), []).append(run.label)
        if len(values) > 1:
            unlabelled = {
                v: [label for label in dict.fromkeys(who) if f" {name}=" not in label] for v, who in values.items()
            }
            notes += [f"{name} {value}: {', '.join(who)}" for value, who in unlabelled.items() if who]
    finetuned = dict.fromkeys(run.label for run in runs if run.measured.after_finetune)
    return sorted(notes) + ([f"after the final fine-tune: {', '.join(finetuned)}"] if finetuned else [])


def labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a label for each run: its method and the settings that differ between runs of this method."""
    return [_label(own, [other for other in settings if other["method"] == own["method"]]) for own in settings]


def _label(own: Mapping[str, Any], same: Sequence[Mapping[str, Any]]) -> str:
    varied = [n for n in own if any(other.get(n) != own[n] for other in same)]
    method = own["method"]
    title = METHODS[method].title if method in METHODS else method
    return " ".join([title, *(f"{name}={_text(own[name])}" for name in varied)])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _own_protocol(folder: Path) -> Protocol:
    entry = read_summary(folder).get("protocol")
    return Protocol(**{f.name: entry[f.name] for f in fields(Protocol)}) if entry else find_protocol("default")
