"""Runs as their folders describe them, finished or not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pfl_fast import config
from pfl_fast.comparison.results import NOT_COMPARED, SETTINGS, labels
from pfl_fast.data.dataset import STAND_IN
from pfl_fast.engine.results.protocol import read_client_rows
from pfl_fast.engine.results.records import TEST_ACCURACIES
from pfl_fast.engine.results.run_folder import check_results, read_summary
from pfl_fast.engine.results.run_lock import RunLock
from pfl_fast.errors import ConfigError, PflFastError

BYTES = {"float32": 4, "float64": 8}


@dataclass(frozen=True)
class StoredRun:
    """Results of a run.

    Attributes:
        folder: run folder.
        label: name in a report; unique there.
        settings: method, settings and options of the method.
        records: JSON objects of the rounds.
        summary: contents of ``summary.json``; empty before the run was interrupted or finished.
        about: contents of ``about.json``; empty in folders of earlier versions.
        partition: rule, hash and settings of the partition.
    """

    folder: Path
    label: str
    settings: dict[str, Any]
    records: list[dict[str, Any]]
    summary: dict[str, Any]
    about: dict[str, Any]
    partition: dict[str, Any]

    @cached_property
    def last_tests(self) -> dict[int, dict[str, str]]:
        """Row of ``clients.csv`` of each client's last test."""
        file = self.folder / "clients.csv"
        rows = read_client_rows(file) if file.exists() else iter(())
        return {int(row["client"]): row for row in rows if any(row.get(name) for name in TEST_ACCURACIES)}

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.settings["method"])

    @property
    def source(self) -> str:
        """``"real"``, ``"synthetic"``, ``"synthetic stand-in"`` or ``"imported"``."""
        about = self.about.get("dataset") or self.partition.get("settings") or {}
        return str(about.get("source", "unknown"))

    @property
    def is_stand_in(self) -> bool:
        """True if generated data stands in for the data set."""
        return self.source == STAND_IN

    @property
    def rounds_done(self) -> int:
        """Number of finished rounds; the final fine-tune counts as one."""
        return max((record["round"] for record in self.records), default=0)

    @property
    def state(self) -> str:
        """``"finished"``, ``"training"`` or ``"interrupted"``."""
        if RunLock(self.folder).holder():
            return "training"
        return "finished" if self.summary.get("finished") else "interrupted"

    @property
    def best(self) -> float | None:
        """Best test accuracy by samples: after aggregation, or after local training if only that one is measured."""
        for name in TEST_ACCURACIES:
            found = [r[name] for r in self.records if r.get(name) is not None and r["round"] > 0]
            if found:
                return float(max(found))
        return None

    @property
    def bytes_per_value(self) -> int:
        """Bytes of a value that is sent."""
        return BYTES.get(str(self.settings.get("dtype")), 4)


def is_run(folder: Path) -> bool:
    """Returns whether a folder holds a run: its settings and its partition."""
    return (folder / "config.toml").is_file() and (folder / "partition" / "partition.json").is_file()


def read(folder: Path) -> StoredRun:
    """Reads a run; one that is being trained, or was killed, has the rounds written so far."""
    if not is_run(folder):
        raise ConfigError(f"{folder}: holds no run (config.toml and partition/ are missing)")
    settings = {**SETTINGS, **config.read(folder / "config.toml")}
    if "method" not in settings:
        raise ConfigError(f"{folder / 'config.toml'}: names no method, so the folder holds no run")
    summary = read_summary(folder)
    try:
        if summary.get("finished"):
            check_results(folder)
    except PflFastError as error:
        raise ConfigError(str(error)) from error
    records = _lines(folder / "metrics.jsonl")
    about, partition = (_object(folder / name) for name in ("about.json", "partition/partition.json"))
    return StoredRun(folder, "", settings, records, summary, about, partition)


def read_labelled(folders: Sequence[Path]) -> list[StoredRun]:
    """Reads runs and gives each a label: its method, settings that differ between runs of it, seed, or folder."""
    runs = [read(folder) for folder in folders]
    compared = [{name: v for name, v in run.settings.items() if name not in NOT_COMPARED} for run in runs]
    named = labels(compared)
    if len(set(named)) < len(named):
        named = [f"{label} seed={run.settings['seed']}" for label, run in zip(named, runs, strict=True)]
    if len(set(named)) < len(named):
        named = [f"{label} ({run.folder})" for label, run in zip(named, runs, strict=True)]
    return [replace(run, label=label) for run, label in zip(runs, named, strict=True)]


def _lines(file: Path) -> list[dict[str, Any]]:
    """Returns the JSON objects of a file; a last line that is cut short is left out."""
    text = file.read_text() if file.exists() else ""
    try:
        return list(_objects(text[: text.rfind("\n") + 1].splitlines()))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{file}: damaged ({error}); pfl-fast resume {file.parent} makes it again") from None


def _objects(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        record = dict(json.loads(line))
        yield {**record, "round": int(record["round"])}


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
