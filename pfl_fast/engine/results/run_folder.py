"""The folder of a run: settings, results and checkpoints.

config.toml      every setting and option, as resolved
partition/       samples of each client; --partition reuses it in another run
metrics.jsonl    one JSON object per round
clients.csv      one row per client and evaluated round, see :func:`client_columns`
summary.json     best, last and mean of the last five of each accuracy
checkpoint/      see :mod:`pfl_fast.engine.state.checkpoint`
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

import numpy as np

from pfl_fast import atomic
from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.results.listeners import Listener, RunView
from pfl_fast.engine.results.protocol import measure, read_tests
from pfl_fast.engine.results.records import RoundRecord
from pfl_fast.engine.state import checkpoint
from pfl_fast.errors import PflFastError


class RunFolderError(PflFastError):
    """The folder of a run cannot be used."""


class RunFolder(Listener):
    """Writes results after each round, and checkpoints.

    Args:
        folder: folder of the run.
        seconds: seconds between checkpoints; 0: a checkpoint after every round.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.metrics, self.clients = folder / "metrics.jsonl", folder / "clients.csv"
        self.checkpoints = folder / "checkpoint"
        self._saved_at = monotonic()
        self._saved_round = -1
        self._columns: list[str] = []
        self._names: list[dict[str, str]] = []

    def create(self, write_config: Callable[[Path], None]) -> None:
        """Creates the folder of a new run."""
        if (self.folder / "config.toml").exists():
            raise RunFolderError(
                f"{self.folder} already holds a run: `pfl-fast resume {self.folder}` continues it, "
                "another --out starts a new one"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_config(self.folder / "config.toml")
        except OSError as error:
            raise RunFolderError(f"{self.folder}: cannot be written ({error}); choose another --out") from error

    def restore(self, run: RunView, log: Callable[[str], None]) -> None:
        """Restores the newest usable checkpoint and removes results of later rounds from the result files."""
        run_info = checkpoint.restore(run.state, self.checkpoints, log)
        done = run.state.rounds_done if run_info is not None else -1
        if run_info is not None:
            check_same_experiment(run_info.result_settings, run.result_settings())
            run.bests.update(run_info.bests)
            self._check_rounds_can_be_added(run_info.rounds, run)
        run.records[:] = [r for r in read_metrics(self.metrics, log) if r["round"] <= done]
        self._rewrite(self.metrics, [json.dumps(r) for r in run.records])
        if self.clients.exists():
            self._drop_client_rows(after=done, columns=client_columns(run))
        self._saved_round = done

    def _check_rounds_can_be_added(self, planned: int, run: RunView) -> None:
        done = run.state.rounds_done
        in_final_round = done > planned or (done == planned and run.state.unfinished.reports)
        if in_final_round and run.settings.rounds > planned:
            raise RunFolderError(
                f"{self.folder}: after the {planned} rounds of this run, every client has trained the method's final "
                "phases, so no rounds can be added; start a new run with more --rounds"
            )

    def started(self, run: RunView) -> None:
        """Writes the header of the clients' rows."""
        self._columns, self._names = client_columns(run), client_names(run.data)
        if not self.clients.exists():
            self._append_client_rows([], header=True)

    def round_done(self, run: RunView, record: RoundRecord) -> None:
        """Appends the results of the round; writes a checkpoint if it is due."""
        self._append(self.metrics, [json.dumps(record.values)])
        if record.evaluated:
            rows = sorted(record.clients.items())
            self._append_client_rows(
                {"round": record.round, "client": c, **self._names[c], **values} for c, values in rows
            )
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
        """Writes a checkpoint."""
        run_info = checkpoint.RunInfo(run.result_settings(), run.settings.rounds, run.bests)
        checkpoint.save(run.state, self.checkpoints, run_info)
        self._saved_at, self._saved_round = monotonic(), run.state.rounds_done

    def _write_summary(self, run: RunView) -> None:
        measured = measure(run.protocol, read_tests(self.folder, run.protocol), run.settings.rounds)
        summary = {
            **run.summary(),
            "protocol": measured.entry(run.protocol) if measured else None,
            "finished": run.state.rounds_done >= run.last_round,
        }
        self._rewrite(self.folder / "summary.json", [json.dumps(summary, indent=2)])

    def _append_client_rows(self, rows: Iterable[Mapping[str, Any]], header: bool = False) -> None:
        with _disk_errors(self.clients), self.clients.open("a", newline="") as handle:
            _write_rows(handle, self._columns, rows, header)

    def _drop_client_rows(self, after: int, columns: list[str]) -> None:
        with self.clients.open(newline="") as handle:
            rows = [row for row in csv.DictReader(handle) if (row.get("round") or "").isdecimal()]
        kept = [row for row in rows if int(row["round"]) <= after]
        with _disk_errors(self.clients), atomic.new_file(self.clients) as new, new.open("w", newline="") as handle:
            _write_rows(handle, columns, kept, header=True)

    def _append(self, file: Path, lines: Iterable[str]) -> None:
        with _disk_errors(file), file.open("a") as handle:
            handle.write("".join(line + "\n" for line in lines))

    def _rewrite(self, file: Path, lines: Iterable[str]) -> None:
        with _disk_errors(file):
            atomic.write_text(file, "".join(line + "\n" for line in lines))


def client_columns(run: RunView) -> list[str]:
    """Returns the columns of ``clients.csv``, which do not depend on results.

    The names of a method's recorded quantities are only known after local training, and may differ between rounds.
    They share the column ``recorded``, a JSON object; metrics with one value per class are JSON lists.
    """
    first = ["round", "client", "client_name", "domain", "train_loss", "seconds", "recorded"]
    measured = [
        f"{split}_{metric}_{when}"
        for split in run.data.tests
        for metric in run.metrics
        for when in ("after_agg", "after_local")
    ]
    return [*first, *(f"{split}_samples" for split in run.data.tests), *measured]


def client_names(data: FederatedData) -> list[dict[str, str]]:
    """Returns name and domain of each client.

    The domain is that of the training samples; several are joined by ``+``. A client with a single domain has the
    domain's name, numbered if other clients have the same one.
    """
    dataset, lots = data.dataset, data.partition.train
    if dataset.domain is None:
        return [{"client_name": f"client {client}", "domain": ""} for client in range(len(lots))]
    found = [[dataset.domains[d] for d in np.unique(dataset.domain[lot])] for lot in lots]
    shared, seen = Counter(names[0] for names in found if len(names) == 1), Counter[str]()
    result = []
    for client, names in enumerate(found):
        name = names[0] if len(names) == 1 else f"client {client}"
        seen[name] += 1
        numbered = f"{name} {seen[name]}" if shared[name] > 1 else name
        result.append({"client_name": numbered, "domain": "+".join(names)})
    return result


def _write_rows(handle: TextIO, columns: list[str], rows: Iterable[Mapping[str, Any]], header: bool) -> None:
    writer = csv.DictWriter(handle, columns, extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    if isinstance(value, dict):  # JSON has no NaN
        value = {name: v if isfinite(v) else None for name, v in value.items()}
    return json.dumps(value) if isinstance(value, (list, dict)) else value


@contextmanager
def _disk_errors(file: Path) -> Iterator[None]:
    """Turns errors of the disk into a message with a remedy."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{file}: cannot be written ({error.strerror}); free some space, then `pfl-fast resume {file.parent}` "
            "continues from the last checkpoint"
        ) from error


def read_metrics(file: Path, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Returns the JSON objects of the rounds of a run; unreadable lines are left out."""
    rows: list[dict[str, Any]] = []
    if not file.exists():
        return rows
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            rows.append(dict(json.loads(line)))
        except (json.JSONDecodeError, TypeError, ValueError):
            log(f"{file}: line {number} cannot be read and is left out")
    return rows


def check_same_experiment(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises if a resumed run would have other results, with every difference."""
    now = json.loads(json.dumps(now))  # tuples become lists, as in the checkpoint
    names = sorted(n for n in {*before, *now} if before.get(n) != now.get(n))
    if names:
        shown = "\n".join(f"  {name}: was {before.get(name)!r}, is {now.get(name)!r}" for name in names)
        raise RunFolderError(f"a resumed run must have the same settings:\n{shown}\nstart a new run in another --out")
