"""Inputs of a method's mixture, see :class:`pfl_fast.methods.base.MixtureInputs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pfl_fast.engine.executors import Executor
from pfl_fast.engine.results.scores import PendingScore, read_scores
from pfl_fast.engine.sharding import Shards
from pfl_fast.engine.state.run_state import RunState
from pfl_fast.engine.worker import TestSettings, Worker
from pfl_fast.methods.base import Tensors


@dataclass(frozen=True)
class RoundUploads:
    """The uploads of a round, and losses of candidate models.

    Attributes:
        clients: clients whose uploads arrived.
        uploads: ``[S, *shape]`` uploads, by server tensor.
    """

    state: RunState
    shards: Shards
    executor: Executor
    clients: list[int]
    uploads: Tensors
    settings: TestSettings

    @property
    def server(self) -> Tensors:
        """Server tensors."""
        return self.state.server

    def tensors(self, client: int) -> Tensors:
        """Returns all tensors of a client after its local training; called by all ranks."""
        return self._view(client, self.shards.client_row(self.state.clients, client))

    def _view(self, client: int, row: Tensors) -> Tensors:
        return self.state.clients.view(client, self.state.server, receives=False, row=row)

    def losses(self, candidates: Sequence[tuple[int, Tensors]]) -> list[float]:
        """Returns the loss of each ``(client, replaced tensors)``; called by all ranks."""

        def pending_loss(worker: Worker, index: int) -> PendingScore:
            client, replaced = candidates[index]
            split = "validation" if worker.data.validation_sizes[client] else "train"
            tensors = {**self._view(client, self.state.clients.row(client)), **replaced}
            return worker.test(worker.single, [client], tensors, split, self.settings)[0]

        def own_losses() -> dict[int, float]:
            indices = self.shards.own_rows([client for client, _ in candidates])
            found = dict(self.executor.run(indices, pending_loss))
            scores = read_scores([found[index] for index in indices])
            return {index: score.loss for index, score in zip(indices, scores, strict=True)}

        losses: dict[int, float] = {}
        for of_rank in self.shards.ranks.gather(own_losses):
            losses.update(of_rank)
        return [losses[index] for index in range(len(candidates))]
