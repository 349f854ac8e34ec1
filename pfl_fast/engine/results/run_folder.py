"""The folder of a run: settings, results and checkpoints.

config.toml      every setting and option, as resolved
partition/       samples of each client; --partition reuses it in another run
data.json        classes, normalisation and names of clients, see :mod:`pfl_fast.engine.results.data_description`
metrics.jsonl    one JSON object per round
clients.csv      one row per client and evaluated round, see :func:`~pfl_fast.engine.results.client_rows.client_columns`
summary.json     best, last and mean of the last five of each accuracy
about.json       machine that started the run, samples of each client and class
checkpoint/      see :mod:`pfl_fast.engine.state.checkpoint`; with copies of metrics.jsonl and clients.csv
run.lock         process that trains the run, while it does

A checkpoint completes the rounds before it: it has settings, state and rows of results. The other files are made from
it if they are damaged, or do not belong to it because the process ended between two writes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from pfl_fast import atomic
from pfl_fast.data.federated import FederatedData
from pfl_fast.data.partition import Partition
from pfl_fast.engine.results.about import about_text, is_valid
from pfl_fast.engine.results.client_rows import client_columns, client_names, csv_text
from pfl_fast.engine.results.data_description import NAME as DATA
from pfl_fast.engine.results.data_description import data_text
from pfl_fast.engine.results.disk_errors import RunFolderError, cannot_be_written, disk_errors
from pfl_fast.engine.results.listeners import Listener, RunView
from pfl_fast.engine.results.protocol import measure, read_tests
from pfl_fast.engine.results.records import RoundRecord
from pfl_fast.engine.results.result_file import ResultFile
from pfl_fast.engine.results.run_lock import RunLock
from pfl_fast.engine.state import checkpoint
from pfl_fast.errors import ConfigError, DataError

RESULTS = ("metrics.jsonl", "clients.csv")
# Files and folders that a run, its trackers and its analyses write.
CONTENTS = (
    *("config.toml", "partition", *RESULTS, "summary.json", "about.json", DATA, "checkpoint", "snapshots"),
    *("analysis", "tensorboard", "wandb", "trackers.json", "error.txt"),
)


class RunFolder(Listener):
    """Writes results after each round, and checkpoints.

    Args:
        folder: folder of the run.
        seconds: seconds between checkpoints; 0: a checkpoint after every round.
        log: receives messages about damaged files.
    """

    def __init__(self, folder: Path, seconds: float, log: Callable[[str], None]) -> None:
        self.folder, self.seconds, self.log = folder, seconds, log
        self.lock = RunLock(folder)
        self.checkpoints = folder / "checkpoint"
        self.results = {name: ResultFile(folder / name, self.checkpoints / name) for name in RESULTS}
        self.config = ""
        self._saved_at = monotonic()
        self._saved_round, self._saved_rounds = -1, 0  # finished and planned rounds of the last checkpoint
        self._saved_as: tuple[str, int, int] | None = None
        self._columns: list[str] = []
        self._names: list[dict[str, str]] = []

    def create(self, config: str, data: FederatedData, overwrite: bool = False) -> None:
        """Creates and locks the folder of a new run.

        Args:
            config: contents of ``config.toml``.
            data: data of the clients.
            overwrite: remove the run in the folder first, if there is one.
        """
        self.config = config
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._cannot_be_created(error) from error
        if overwrite:
            self.lock.take_from_this_process()
        self.lock.acquire(self.log)
        try:
            if overwrite:
                self._remove_run()
            if (self.folder / "config.toml").exists() or checkpoint.checkpoints(self.checkpoints):
                raise RunFolderError(
                    f"out: {self.folder} already holds a run: Experiment.resume (pfl-fast resume) continues it, "
                    "another folder starts a new one, overwrite=True replaces it"
                )
            data.partition.save(self.folder / "partition")
            atomic.write_text(self.folder / DATA, data_text(data))
            atomic.write_text(self.folder / "config.toml", config)  # last: it makes the folder a run
        except OSError as error:
            self.lock.release()
            raise self._cannot_be_created(error) from error
        except BaseException:
            self.lock.release()
            raise

    def _remove_run(self) -> None:
        """Removes the files of a run, settings first: a folder without them holds no run."""
        if not (self.folder / "config.toml").exists():
            return
        for name in CONTENTS:
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _cannot_be_created(self, error: OSError) -> RunFolderError:
        return RunFolderError(f"{self.folder}: cannot be written ({error}); choose another folder as out")

    def open(self) -> str | None:
        """Locks the folder of an existing run; returns ``config.toml`` at its newest checkpoint, if there is one."""
        if not self.checkpoints.is_dir() and not (self.folder / "config.toml").exists():
            raise ConfigError(f"{self.folder}: holds no run (config.toml is missing)")
        if os.access(self.folder, os.W_OK):  # others may be opened, but not trained
            self.lock.acquire(self.log)
        return self.saved_config()

    def saved_config(self) -> str | None:
        """Returns ``config.toml`` at the newest checkpoint, if there is one."""
        if not self.checkpoints.is_dir() and not (self.folder / "config.toml").exists():
            raise ConfigError(f"{self.folder}: holds no run (config.toml is missing)")
        info = checkpoint.newest_info(self.checkpoints)
        return info.config if info else None

    def saved_partition(self) -> Partition | None:
        """Returns the partition of the newest checkpoint from the folder, or None if it is damaged."""
        info = checkpoint.newest_info(self.checkpoints)
        try:
            found = Partition.load(self.folder / "partition")
        except DataError:
            return None
        return found if info is None or found.hash == info.result_settings["partition_hash"] else None

    def saved_data_hash(self) -> str | None:
        """Returns the hash of imported data at the newest checkpoint, or None."""
        info = checkpoint.newest_info(self.checkpoints)
        return info.result_settings.get("data_hash") if info else None

    def own_partition(self) -> Partition:
        """Returns the partition of a run that settings cannot make; raises if it is damaged."""
        found = self.saved_partition()
        if found is None:
            raise RunFolderError(
                f"{self.folder / 'partition'}: missing or damaged, and the settings of the run cannot make it again: "
                "put it back, or pass it as Experiment.resume(folder, partition=...)"
            )
        return found

    def restore(self, run: RunView, config: str) -> None:
        """Restores the newest usable checkpoint.

        Args:
            run: the same experiment before its first round.
            config: new contents of ``config.toml``.
        """
        self.config = config
        restored: dict[str, str] = {}

        def accept(info: checkpoint.RunInfo) -> None:
            restored.update({name: file.restore(info.results[name]) for name, file in self.results.items()})

        info = checkpoint.restore(run.state, self.checkpoints, self.log, accept)
        if info is None:
            return self._refuse_without_checkpoints()
        check_same_experiment(info.result_settings, run.result_settings())
        run.bests.update(info.bests)
        self._refuse_more_rounds(info.rounds, run)
        run.records[:] = [json.loads(line) for line in restored["metrics.jsonl"].splitlines()]
        self._remember(run.state.rounds_done, info.rounds)
        return None

    def _refuse_without_checkpoints(self) -> None:
        """Raises if rounds have been trained: every run writes a checkpoint before its first round."""
        found = [n for n in (*RESULTS, "summary.json") if (self.folder / n).exists()]
        if found:
            raise RunFolderError(
                f"{self.folder}: has results ({', '.join(found)}) but no checkpoint, so the run cannot be continued: "
                f"put back the folder {self.checkpoints}, or train again with `pfl-fast train --config "
                f"{self.folder / 'config.toml'} --out ANOTHER_FOLDER`; the results stay as they are"
            )

    def _refuse_more_rounds(self, planned: int, run: RunView) -> None:
        if run.settings.rounds <= planned:
            return
        done = run.state.rounds_done
        if done > planned or (done == planned and run.state.unfinished.reports):
            raise RunFolderError(
                f"{self.folder}: after the {planned} rounds of this run, every client has trained the method's final "
                "phases, so no rounds can be added; start a new run with more rounds"
            )
        schedule = "lr_schedule=cosine" if run.settings.depends_on_rounds else ""
        schedule = run.method.title if run.method.depends_on_rounds else schedule
        if schedule:
            raise RunFolderError(
                f"{self.folder}: rounds: was {planned}, asked for {run.settings.rounds}; the local training of "
                f"{schedule} depends on the number of rounds, so rounds cannot be added; start a new run with "
                f"rounds={run.settings.rounds}"
            )

    def started(self, run: RunView) -> None:
        """Writes a checkpoint before the first round; repairs files that do not belong to the restored checkpoint."""
        if not self.lock.held:
            self.lock.acquire(self.log)
            if self._saved_as != self._newest():
                self.lock.release()
                raise RunFolderError(
                    f"{self.folder}: another process has continued this run; Experiment.resume reads its state"
                )
        self.lock.trains = True
        self._columns, self._names = client_columns(run), client_names(run.data)
        new = self._saved_as is None
        if new:
            self.results["clients.csv"].begin(csv_text(self._columns, [], header=True))
            self.save(run)
        elif self._saved_rounds != run.settings.rounds:
            self.save(run)
        self._repair(run, new)

    def _repair(self, run: RunView, new: bool) -> None:
        for result in self.results.values():
            with disk_errors(result.file, self.folder):
                if result.repair() and not new:
                    self.log(f"{result.file}: rows are missing or changed; the file is made again from the checkpoint")
        folder = self.folder / "partition"
        for name, text in (("config.toml", self.config), (DATA, data_text(run.data))):
            file = self.folder / name
            with disk_errors(file, self.folder):
                if not file.exists() or file.read_bytes() != text.encode():
                    atomic.write_text(file, text)
        with disk_errors(folder, self.folder):
            if self.saved_partition() is None:
                self.log(f"{folder}: missing or damaged; it is made again from the settings")
                run.data.partition.save(folder)
        about = self.folder / "about.json"
        with disk_errors(about, self.folder):
            if not is_valid(about):
                atomic.write_text(about, about_text(run.data))

    def round_done(self, run: RunView, record: RoundRecord) -> None:
        """Appends the results of the round; writes a checkpoint if it is due."""
        clients = sorted(record.clients.items()) if record.evaluated else []
        rows = [{"round": record.round, "client": c, **self._names[c], **values} for c, values in clients]
        texts = {"metrics.jsonl": json.dumps(record.values) + "\n", "clients.csv": csv_text(self._columns, rows)}
        failed = []
        for name, text in texts.items():
            try:
                self.results[name].add(text)
            except OSError as error:  # all rows reach the checkpoint, whatever could be written
                failed.append(cannot_be_written(self.results[name].file, self.folder, error))
        if failed:
            raise failed[0]
        if monotonic() - self._saved_at >= self.seconds:
            self.save(run)

    def interrupted(self, run: RunView) -> None:
        """Writes a checkpoint and the summary."""
        self.save(run)
        self._write_summary(run)

    def finished(self, run: RunView) -> None:
        """Writes the last checkpoint and the summary."""
        if self._saved_round != run.state.rounds_done:
            self.save(run)
        self._write_summary(run)

    def save(self, run: RunView) -> None:
        """Writes a checkpoint, and the rows in it to the copies of the result files."""
        results = {name: file.state() for name, file in self.results.items()}
        info = checkpoint.RunInfo(run.result_settings(), run.settings.rounds, run.bests, self.config, results)
        checkpoint.save(run.complete_state(), self.checkpoints, info)
        self._remember(run.state.rounds_done, run.settings.rounds)
        for file in self.results.values():
            with disk_errors(file.copy, self.folder):
                file.saved()

    def _remember(self, done: int, planned: int) -> None:
        self._saved_at, self._saved_round, self._saved_rounds = monotonic(), done, planned
        self._saved_as = self._newest()

    def _newest(self) -> tuple[str, int, int] | None:
        """Returns name, inode and time of the newest checkpoint, which tell whether it has been replaced."""
        files = checkpoint.checkpoints(self.checkpoints)
        facts = files[0].stat() if files else None
        return (files[0].name, facts.st_ino, facts.st_mtime_ns) if facts else None

    def _write_summary(self, run: RunView) -> None:
        file = self.folder / "summary.json"
        with disk_errors(file, self.folder):
            measured = measure(run.protocol, read_tests(self.folder, run.protocol), run.settings.rounds)
            summary = {
                **run.summary(),
                "protocol": measured.entry(run.protocol) if measured else None,
                "finished": run.state.rounds_done >= run.last_round,
            }
            summary["digest"] = checkpoint.json_digest(json.loads(json.dumps(summary)))
            atomic.write_text(file, json.dumps(summary, indent=2) + "\n")


def read_summary(folder: Path) -> dict[str, Any]:
    """Returns the contents of ``summary.json``; empty if it is missing or damaged."""
    try:
        summary = dict(json.loads((folder / "summary.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
    return summary if summary.get("digest") == checkpoint.json_digest(summary) else {}


def check_results(folder: Path) -> None:
    """Raises if the result files of a run do not have the contents of its newest checkpoint."""
    info = checkpoint.newest_info(folder / "checkpoint")
    for name, state in info.results.items() if info else ():
        file = folder / name
        rows = ResultFile(file, folder / "checkpoint" / name).restore(state)
        if not file.exists() or file.read_bytes() != rows.encode():
            raise RunFolderError(
                f"{file}: rows are missing or changed since the run wrote them; `pfl-fast resume {folder}` makes the "
                "file again"
            )


def check_same_experiment(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises if a resumed run would have other results, with every difference."""
    now = json.loads(json.dumps(now))  # tuples become lists, as in the checkpoint
    names = sorted(n for n in {*before, *now} if before.get(n) != now.get(n))
    if names:
        shown = "\n".join(f"  {name}: was {before.get(name)!r}, is {now.get(name)!r}" for name in names)
        raise RunFolderError(f"a resumed run must have the same settings:\n{shown}\nstart a new run in another folder")
