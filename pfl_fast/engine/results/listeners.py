"""Events of a run. The round loop calls listeners without knowing their classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pfl_fast.data.federated import FederatedData
    from pfl_fast.engine.client_results import Bests, LocalReport
    from pfl_fast.engine.results.metrics import Metric
    from pfl_fast.engine.results.protocol import Protocol as AccuracyProtocol
    from pfl_fast.engine.results.records import RoundRecord
    from pfl_fast.engine.settings import RoundSettings
    from pfl_fast.engine.state.run_state import RunState
    from pfl_fast.methods.base import Method, Tensors


class RunView(Protocol):
    """The parts of a run that listeners and the run folder use."""

    @property
    def settings(self) -> RoundSettings:
        """Settings of the rounds."""

    @property
    def data(self) -> FederatedData:
        """Samples of the clients."""

    @property
    def method(self) -> Method:
        """Method of the run."""

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Metrics of the tests, by name."""

    @property
    def state(self) -> RunState:
        """State of the server and the clients."""

    @property
    def last_round(self) -> int:
        """Number of the last round; the final phases of a method count as one round."""

    @property
    def records(self) -> list[dict[str, Any]]:
        """JSON objects of the finished rounds."""

    @property
    def bests(self) -> Bests:
        """Best accuracies of each client."""

    @property
    def protocol(self) -> AccuracyProtocol:
        """Rules for the accuracy of the run."""
        ...

    def complete_state(self) -> RunState:
        """Returns the state with that of all ranks' clients, for a checkpoint."""
        ...

    def result_settings(self) -> dict[str, Any]:
        """Returns all settings and options that determine the results."""

    def summary(self) -> dict[str, Any]:
        """Returns the summary of the finished rounds."""


class Listener:
    """Base class of listeners; a subclass overrides the events it needs.

    In a run of several ranks (torchrun) rank 0 calls its listeners; every rank calls ``client_done`` and
    ``client_trained``, for its own clients.
    """

    def started(self, run: RunView) -> None:
        """Called before the first round, or the first round after resuming."""

    def client_done(self, round: int, done: int, total: int, report: LocalReport) -> None:
        """Called when a client has trained, the ``done``-th of ``total`` in this round."""

    def client_trained(self, round: int, client: int, tensors: Tensors, upload: Tensors) -> None:
        """Called when a client has trained, in the thread that trained it, one call at a time.

        Args:
            round: number of the round.
            client: number of the client.
            tensors: all tensors of the client after local training, by name, such as ``"head.weight"``.
            upload: the client's upload, by server tensor; empty if it uploads nothing.

        Both may be overwritten after the call: clone what is kept. Clients that trained before an interruption are not
        reported again when the round is resumed.
        """

    def round_done(self, run: RunView, record: RoundRecord) -> None:
        """Called after each round."""

    def interrupted(self, run: RunView) -> None:
        """Called when a signal or an error ends the run early; the state includes every client that has trained."""

    def finished(self, run: RunView) -> None:
        """Called after the last round."""
