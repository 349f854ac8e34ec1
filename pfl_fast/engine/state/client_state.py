"""Clients' own state: for each stored tensor one block ``[N, *shape]``, of which client i owns row i.

A row costs nothing until its client first trains: blocks are allocated without touching them, so that memory follows
the clients that took part, not N. On disk the blocks are sparse files, mapped into memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.methods.base import Method, Tensors
from pfl_fast.randomness import key


class ClientState:
    """Rows of all clients.

    Args:
        layout: the part table.
        method: for what its clients start from.
        clients: N.
        seed: of the run.
        folder: where blocks are mapped files; None: in memory.
    """

    def __init__(
        self, part_table: PartTable, method: Method, clients: int, seed: int, folder: Path | None = None
    ) -> None:
        self.part_table = part_table
        self.method = method
        self.clients = clients
        self.seed = seed
        self.touched = torch.zeros(clients, dtype=torch.bool)
        self.blocks: Tensors = {}
        self._folder = folder
        for spec in part_table.stored:
            self.blocks[spec.key] = self._allocate(spec.key, spec.value)

    def _allocate(self, name: str, value: Tensor) -> Tensor:
        shape = [self.clients, *value.shape]
        if self._folder is None:
            return torch.empty(shape, dtype=value.dtype)  # pages come into being when a row is written
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{name}.block"
        size = self.clients * value.numel()
        with file.open("wb") as handle:
            handle.truncate(size * value.element_size())  # sparse: only rows that are written take up space
        return torch.from_file(str(file), shared=True, size=size, dtype=value.dtype).view(shape)

    def start(self, client: int) -> Tensors:
        """A client's stored tensors before it ever trained."""
        seed = torch.tensor(key(self.seed, "initial", client))
        common = {**self.part_table.common, **self.part_table.initial_values(client)}
        values = {**common, **self.method.initial(common, client, seed)}
        values.update(self.method.on_receive(values, at="start"))
        return {name: values[name] for name in self.blocks}

    def row(self, client: int) -> Tensors:
        """A client's stored tensors, to be read."""
        if not self.touched[client]:
            return self.start(client)
        return {name: block[client] for name, block in self.blocks.items()}

    def write(self, client: int, values: Tensors) -> None:
        """Overwrites those of a client's stored tensors that are in ``values``."""
        if not self.touched[client]:
            values = {**self.start(client), **values}
            self.touched[client] = True
        for name, block in self.blocks.items():
            if name in values:
                block[client].copy_(values[name])

    def view(
        self,
        client: int,
        server: Tensors,
        receives: bool = True,
        at: str = "start",
        final: bool = False,
        round: int = 1,
    ) -> Tensors:
        """All tensors of a client, not copied: its own, and the server's where it receives them.

        Args:
            client: whose.
            server: the server's tensors.
            receives: whether the client is sent everything; if not, only what all clients receive.
            at: ``"start"`` or ``"end"`` of a round, for the method's hook.
            final: nothing is sent any more, not even to all.
            round: the current one; some parts are exchanged only in the first rounds.
        """
        values = {**self.part_table.common, **self.row(client)}
        for spec in self.part_table.received:
            if (receives and spec.exchanged(round)) or (spec.to_all and not (final and spec.stored)):
                assert spec.receive_from is not None
                values[spec.key] = server[spec.receive_from]
        return {**values, **self.method.on_receive(values, at)} if receives else values

    def send(self, clients: Iterable[int], server: Tensors, round: int = 1) -> None:
        """The end of a round: clients keep what they received, as far as it is stored."""
        for client in clients:
            self.write(client, self.view(client, server, at="end", round=round))

    def close(self) -> None:
        """Frees memory and removes mapped files."""
        self.blocks.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
