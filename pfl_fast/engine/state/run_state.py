"""The state of a run: everything a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from pfl_fast.engine.client_results import LocalReport, Score
from pfl_fast.engine.state.client_state import ClientState
from pfl_fast.methods.base import Tensors


@dataclass
class PartialRound:
    """Results of the clients that have trained in an unfinished round.

    Attributes:
        reports: reports of local training, by client.
        scores: scores after local training, by client and split.
        uploads: ``[S, *shape]`` uploads, by server tensor.
    """

    reports: dict[int, LocalReport] = field(default_factory=dict)
    scores: dict[int, dict[str, Score]] = field(default_factory=dict)
    uploads: Tensors = field(default_factory=dict)


@dataclass
class RunState:
    """State of the server and of all clients.

    Attributes:
        server: server tensors, by name.
        clients: stored tensors of the clients.
        rounds_done: number of finished rounds.
        unfinished: results of the round under way.
    """

    server: Tensors
    clients: ClientState
    rounds_done: int = 0
    unfinished: PartialRound = field(default_factory=PartialRound)

    def finish_round(self) -> PartialRound:
        """Counts the round under way as finished, and returns its results."""
        finished, self.unfinished = self.unfinished, PartialRound()
        self.rounds_done += 1
        return finished
