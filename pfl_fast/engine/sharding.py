"""Clients of each rank: it trains and tests them, and keeps their state. Uploads and state are gathered here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pfl_fast.engine.ranks import Ranks
from pfl_fast.engine.sampling import Cohort
from pfl_fast.engine.state.client_state import ClientState
from pfl_fast.engine.state.run_state import PartialRound, RunState
from pfl_fast.methods.base import Tensors, averaged
from pfl_fast.transfer import to_device, write_rows

MESSAGE_BYTES = 64 << 20  # clients' tensors are sent in pieces of about this size


class Shards:
    """The clients of all ranks.

    Args:
        ranks: the ranks.
        ordered: all clients, those with the most steps first; they are dealt to the ranks in turn.
    """

    def __init__(self, ranks: Ranks, ordered: Sequence[int]) -> None:
        self.ranks = ranks
        self.owner = {client: place % ranks.size for place, client in enumerate(ordered)}

    def own(self, clients: Sequence[int]) -> list[int]:
        """Returns the clients that belong to this rank."""
        return [client for client in clients if self.owner[client] == self.ranks.rank]

    def own_rows(self, clients: Sequence[int]) -> list[int]:
        """Returns the positions of this rank's clients in a list of clients."""
        return [row for row, client in enumerate(clients) if self.owner[client] == self.ranks.rank]

    def own_cohort(self, cohort: Cohort) -> Cohort:
        """Returns the part of a cohort that belongs to this rank."""
        return Cohort(self.own(cohort.training), self.own(cohort.uploading), self.own(cohort.receiving))

    def keeps(self, clients: int) -> Tensor:
        """Returns ``[N]`` booleans: the clients whose state this rank keeps; rank 0 has copies of all."""
        return torch.tensor([self.ranks.rank in (0, self.owner[client]) for client in range(clients)])

    # uploads

    def all_uploads(self, uploads: Tensors, clients: Sequence[int]) -> Tensors:
        """Returns the ``[S, *shape]`` uploads of all ``clients``, given those of this rank's clients."""
        if self.ranks.size == 1:
            return uploads
        rows: list[list[int]] = [[] for _ in range(self.ranks.size)]
        for row, client in enumerate(clients):
            rows[self.owner[client]].append(row)
        back = torch.tensor([row for of_rank in rows for row in of_rank]).argsort()
        counts = [len(of_rank) for of_rank in rows]
        return {
            name: self.ranks.all_rows(block, counts)[to_device(back, block.device)] for name, block in uploads.items()
        }

    def average(self, uploads: Tensors, weights: Tensor, clients: Sequence[int]) -> Tensors:
        """Returns ``sum_i weights_i upload_i`` over all ``clients``, given the uploads of this rank's clients.

        Integer tensors (counters) are copied from the first client, as in :func:`pfl_fast.methods.base.averaged`.
        """
        rows = self.own_rows(clients)
        if rows:
            own = averaged(uploads, weights[to_device(rows, weights.device)])
        else:
            own = {name: block.new_zeros(block.shape[1:]) for name, block in uploads.items()}
        if self.owner[clients[0]] != self.ranks.rank:
            own = {name: t if t.is_floating_point() else torch.zeros_like(t) for name, t in own.items()}
        return self.ranks.sum(own)

    # state

    def client_row(self, state: ClientState, client: int) -> Tensors:
        """Returns the stored tensors of a client of any rank; called by all ranks."""
        if self.ranks.size == 1:
            return state.row(client)
        own = self.owner[client] == self.ranks.rank
        like = state.row(client) if own else {name: _empty_row(block) for name, block in state.blocks.items()}
        return self.ranks.broadcast(like, self.owner[client]) if like else {}

    def complete(self, state: RunState, cohort: Cohort, new_uploads: Callable[[], Tensors]) -> RunState:
        """Returns on rank 0 the state of all clients; called by all ranks.

        Args:
            state: state of this rank.
            cohort: clients of the round under way.
            new_uploads: returns blocks for the uploads of the whole cohort.
        """
        if self.ranks.size == 1:
            return state
        clients, unfinished = state.clients, state.unfinished
        self._to_first(clients.blocks, self.own(clients.changed.nonzero().flatten().tolist()), clients.write_stack)
        clients.changed.zero_()
        for reports, scores in self.ranks.gather(lambda: (unfinished.reports, unfinished.scores)):
            unfinished.reports.update(reports)
            unfinished.scores.update(scores)
        if not unfinished.reports:
            return state
        return replace(state, unfinished=self._all_unfinished(unfinished, cohort, new_uploads))

    def _all_unfinished(
        self, unfinished: PartialRound, cohort: Cohort, new_uploads: Callable[[], Tensors]
    ) -> PartialRound:
        uploads, rows = new_uploads(), self.own_rows(cohort.uploading)
        rows = rows if unfinished.uploads else []  # a stack that has not finished its training
        if rows:
            write_rows(uploads, rows, unfinished.uploads)
        self._to_first(uploads, rows, lambda rows, values: write_rows(uploads, rows, values))
        return replace(unfinished, uploads=uploads)

    def _to_first(self, blocks: Tensors, rows: Sequence[int], write: Callable[[list[int], Tensors], None]) -> None:
        """Sends rows of this rank's blocks to rank 0, which calls ``write`` with them."""
        if not blocks:
            return
        bytes_per_row = max(1, sum(_empty_row(block).nbytes for block in blocks.values()))
        for rank, of_rank in enumerate(self.ranks.gather(lambda: list(rows))):
            for some in _pieces(of_rank, max(1, MESSAGE_BYTES // bytes_per_row)):
                if rank == 0:
                    continue
                if rank == self.ranks.rank:
                    self.ranks.send({name: block[some] for name, block in blocks.items()})
                elif self.ranks.rank == 0:
                    like = {n: torch.empty((len(some), *b.shape[1:]), dtype=b.dtype) for n, b in blocks.items()}
                    write(some, self.ranks.receive(like, rank))

    def take_own_uploads(self, unfinished: PartialRound, cohort: Cohort) -> None:
        """Keeps the uploads of this rank's clients only, of all that a checkpoint had."""
        if self.ranks.size > 1:
            rows = self.own_rows(cohort.uploading)
            unfinished.uploads = {name: block[rows] for name, block in unfinished.uploads.items()}


def _empty_row(block: Tensor) -> Tensor:
    return torch.empty(block.shape[1:], dtype=block.dtype)


def _pieces(rows: Sequence[int], size: int) -> Iterator[list[int]]:
    for first in range(0, len(rows), size):
        yield list(rows[first : first + size])
