"""The common part of all trackers: values of a round by name, and identifiers for resumed runs."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_fast import atomic
from pfl_fast.engine.results.listeners import Listener, RunView

if TYPE_CHECKING:
    from pfl_fast.engine.results.records import RoundRecord

IDENTIFIERS = "trackers.json"  # in the run folder: the tracker's identifier of the run, by tracker


class Tracker(Listener):
    """Sends settings and the values of each round to a tracker.

    An error of the tracker after the start, such as a lost connection, never ends the run: ``log`` receives it once,
    and nothing more is sent.

    Args:
        folder: run folder; a resumed run continues the tracker's run that the folder names.
        log: receives messages to the user.
    """

    name: str

    def __init__(self, folder: str | Path, log: Callable[[str], None] = print) -> None:
        self.folder, self.log = Path(folder), log
        self._sends = False

    @abstractmethod
    def begin(self, settings: Mapping[str, Any], round: int) -> None:
        """Opens the tracker's run.

        Args:
            settings: settings and options that determine the results.
            round: number of the next round; above 1, the run is resumed.
        """

    @abstractmethod
    def send(self, values: Mapping[str, float], round: int) -> None:
        """Sends the values of a round, see :func:`scalars`."""

    @abstractmethod
    def end(self, summary: Mapping[str, float]) -> None:
        """Closes the tracker's run; ``summary`` has its best and last accuracies."""

    def started(self, run: RunView) -> None:
        """Opens the tracker's run."""
        self.begin(run.result_settings(), run.state.rounds_done + 1)
        self._sends = True

    def round_done(self, run: RunView, record: RoundRecord) -> None:  # noqa: ARG002
        """Sends the values of the round."""
        self._try(lambda: self.send(scalars(record.values), record.round))

    def interrupted(self, run: RunView) -> None:
        """Closes the tracker's run; a resumed run opens it again."""
        self.finished(run)

    def finished(self, run: RunView) -> None:
        """Closes the tracker's run."""
        accuracies = {name: value for name, value in run.summary().items() if isinstance(value, dict)}
        found = {f"{name}/{which}": value[which] for name, value in accuracies.items() for which in ("best", "last")}
        self._try(lambda: self.end(found))
        self._sends = False

    def identifier(self) -> str | None:
        """Returns the tracker's identifier of the run, None in a new run."""
        found = self._identifiers().get(self.name)
        return None if found is None else str(found)

    def keep_identifier(self, identifier: str) -> None:
        """Stores the tracker's identifier of the run for :meth:`identifier`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**self._identifiers(), self.name: identifier}) + "\n"
        atomic.write_text(self.folder / IDENTIFIERS, text)

    def _identifiers(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / IDENTIFIERS).read_text()))
        except (OSError, ValueError):
            return {}

    def _try(self, action: Callable[[], None]) -> None:
        if not self._sends:
            return
        try:
            action()
        except Exception as error:  # trackers raise errors of their own
            self._sends = False
            self.log(f"{self.name}: {type(error).__name__}: {error}; the run continues, nothing more is sent")


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers in the record of a round by name; ``/`` groups them.

    >>> scalars({"round": 3, "test_loss_after_agg": 0.5, "pir": 0.1, "seconds_by_part": {"local": 2.0}, "data": "real"})
    {'test/loss_after_agg': 0.5, 'pir': 0.1, 'seconds/local': 2.0}
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        split, _, rest = name.partition("_")
        shown = f"{split}/{rest}" if split in ("test", "train", "validation") and rest else name
        if name == "seconds_by_part":
            found.update({f"seconds/{part}": float(seconds) for part, seconds in value.items()})
        elif name != "round" and isinstance(value, (int, float)) and not isinstance(value, bool):
            found["seconds/round" if name == "seconds" else shown] = float(value)
    return found
