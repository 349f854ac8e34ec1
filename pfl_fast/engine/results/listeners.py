"""What happens in a run, and who wants to know: the loop knows none of them by name."""

from __future__ import annotations

from typing import Any

from pfl_fast.engine.local.progress import LocalReport
from pfl_fast.engine.results.records import RoundRecord


class Listener:
    """Overrides what it wants to hear about."""

    def started(self, experiment: Any) -> None:
        """Before the first round, or the first one after resuming."""

    def client_done(self, round: int, done: int, total: int, report: LocalReport) -> None:
        """A client has trained: ``done`` of ``total`` in this round."""

    def round_done(self, experiment: Any, record: RoundRecord) -> None:
        """A round is over."""

    def interrupted(self, experiment: Any) -> None:
        """The run ends before its time, by a signal or an error; state is as after the last client that trained."""

    def finished(self, experiment: Any) -> None:
        """All rounds are done."""
