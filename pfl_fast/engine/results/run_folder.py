"""The folder of a run: what was asked for, what came out, and the state to go on from.

config.toml      every setting and option, as resolved
partition/       who has which samples; --partition takes it for another run
metrics.jsonl    one JSON object per round
clients.csv      one row per client and evaluated round
summary.json     best, last and mean of the last five
checkpoint/      see :mod:`pfl_fast.engine.state.checkpoint`
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from pfl_fast.engine.results.listeners import Listener
from pfl_fast.engine.results.records import RoundRecord, with_current_names
from pfl_fast.engine.state import checkpoint
from pfl_fast.errors import PflFastError


class RunFolderError(PflFastError):
    """A run's folder cannot be used."""


class RunFolder(Listener):
    """Writes results as they come, and checkpoints.

    Args:
        folder: of the run.
        seconds: from one checkpoint to the next; 0: after every round.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self._saved_at = monotonic()
        self._saved_round = -1

    @property
    def metrics(self) -> Path:
        """One JSON object per round."""
        return self.folder / "metrics.jsonl"

    @property
    def clients(self) -> Path:
        """One row per client and evaluated round."""
        return self.folder / "clients.csv"

    @property
    def checkpoints(self) -> Path:
        """State to go on from."""
        return self.folder / "checkpoint"

    def create(self, write_config: Callable[[Path], None]) -> None:
        """Makes the folder for a new run."""
        if (self.folder / "config.toml").exists():
            raise RunFolderError(
                f"{self.folder} already holds a run: `pfl-fast resume {self.folder}` goes on with it, "
                "another --out starts a new one"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_config(self.folder / "config.toml")
        except OSError as error:
            raise RunFolderError(f"{self.folder}: cannot be written ({error}); choose another --out") from error

    def restore(self, experiment: Any, report: Callable[[str], None]) -> None:
        """Puts an experiment back to the newest good checkpoint, and results to what was known then."""
        kept = checkpoint.restore(experiment.server, self.checkpoints, report)
        done = experiment.server.rounds_done
        if kept is not None:
            check_same_experiment(kept["science"], experiment.result_settings())
            bests = kept["bests"].items()
            experiment.bests = {name: {int(c): best for c, best in by.items()} for name, by in bests}
            self._refuse_rounds_after_the_finale(kept["rounds"], experiment)
        rows = [r for r in read_metrics(self.metrics, report) if r["round"] <= done and kept is not None]
        experiment.records[:] = rows
        self._rewrite(self.metrics, [json.dumps(r) for r in rows])
        if self.clients.exists():
            header, *lines = self.clients.read_text().splitlines() or [""]
            self._rewrite(self.clients, [header, *(x for x in lines if rows and int(x.split(",")[0]) <= done)])
        self._saved_round = done if kept is not None else -1

    def _refuse_rounds_after_the_finale(self, planned: int, experiment: Any) -> None:
        server = experiment.server
        began = server.rounds_done > planned or (server.rounds_done == planned and server.unfinished.reports)
        if began and experiment.settings.rounds > planned:
            raise RunFolderError(
                f"{self.folder}: after its {planned} rounds every client has trained on its own, so that no rounds can "
                "be added; start a new run with more --rounds"
            )

    def round_done(self, experiment: Any, record: RoundRecord) -> None:
        """Adds the round to the results; writes a checkpoint if it is time."""
        self._append(self.metrics, [json.dumps(record.values)])
        if record.evaluated:
            self._append_clients(record)
        if monotonic() - self._saved_at >= self.seconds:
            self.save(experiment)

    def interrupted(self, experiment: Any) -> None:
        """Keeps everything that was computed."""
        self.save(experiment)
        self._write_summary(experiment)

    def finished(self, experiment: Any) -> None:
        """The last checkpoint, and the summary."""
        if self._saved_round != experiment.server.rounds_done:
            self.save(experiment)
        self._write_summary(experiment)

    def save(self, experiment: Any) -> None:
        """Writes a checkpoint."""
        rounds = experiment.settings.rounds
        beside = {"science": experiment.result_settings(), "rounds": rounds, "bests": experiment.bests}
        checkpoint.save(experiment.server, self.checkpoints, beside)
        self._saved_at, self._saved_round = monotonic(), experiment.server.rounds_done

    def _write_summary(self, experiment: Any) -> None:
        self._rewrite(self.folder / "summary.json", [json.dumps(experiment.summary(), indent=2)])

    def _append_clients(self, record: RoundRecord) -> None:
        columns = self._columns(record)
        rows = [{"round": record.round, "client": c, **values} for c, values in sorted(record.clients.items())]
        if columns is None or not rows:
            return
        self._append(self.clients, [",".join(_cell(row.get(name)) for name in columns) for row in rows])

    def _columns(self, record: RoundRecord) -> list[str] | None:
        """Those of the file; a file that is not there yet is begun."""
        if self.clients.exists():
            return next(csv.reader([self.clients.read_text().split("\n", 1)[0]]))
        names = list(dict.fromkeys(name for values in record.clients.values() for name in values))
        if not names:
            return None
        self._append(self.clients, [",".join(["round", "client", *names])])
        return ["round", "client", *names]

    def _append(self, file: Path, lines: Iterable[str]) -> None:
        with _disk_errors(file), file.open("a") as handle:
            handle.write("".join(line + "\n" for line in lines))

    def _rewrite(self, file: Path, lines: Iterable[str]) -> None:
        with _disk_errors(file):
            temporary = file.with_name(file.name + ".new")
            temporary.write_text("".join(line + "\n" for line in lines))
            os.replace(temporary, file)  # noqa: PTH105 same as the checkpoint's


def _cell(value: Any) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


class _disk_errors:  # noqa: N801 used like a function
    """Turns what the disk says into a message with a remedy."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise RunFolderError(
                f"{self.file}: cannot be written ({error.strerror}); free some space, then `pfl-fast resume "
                f"{self.file.parent}` goes on from the last checkpoint"
            ) from error


def read_metrics(file: Path, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Returns the JSON objects of the rounds of a run, under current names; unreadable lines are left out."""
    rows: list[dict[str, Any]] = []
    if not file.exists():
        return rows
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            rows.append(with_current_names(json.loads(line)))
        except (json.JSONDecodeError, AttributeError):
            report(f"{file}: line {number} cannot be read and is left out")
    return rows


def check_same_experiment(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises if a run would go on as another experiment, and shows the difference."""
    now = json.loads(json.dumps(now))  # as it was written: tuples are lists
    names = sorted(n for n in {*before, *now} if before.get(n) != now.get(n))
    if names:
        shown = "\n".join(f"  {name}: was {before.get(name)!r}, is {now.get(name)!r}" for name in names)
        raise RunFolderError(f"the run cannot go on as another experiment:\n{shown}\nstart a new one in another --out")
