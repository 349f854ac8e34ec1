"""Stored tensors of all clients: one block ``[N, *shape]`` per tensor; client i owns row i.

Blocks are allocated without touching them, so memory grows with the clients that have trained, not with N. On disk,
blocks are sparse memory-mapped files.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.methods.base import Method, Tensors
from pfl_fast.randomness import key


class OnDevice(Mapping[str, Tensor]):
    """Tensors by name, on one device: a tensor of another device is copied when it is read.

    Args:
        tensors: tensors on any device.
        device: device of all values.
    """

    def __init__(self, tensors: Tensors, device: torch.device) -> None:
        self._tensors = tensors
        self._device = device

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name].to(self._device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class ClientState:
    """Stored tensors of all clients, in ``folder`` as memory-mapped blocks, or in memory if it is None."""

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
            return torch.empty(shape, dtype=value.dtype)  # pages are allocated when a row is written
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{name}.block"
        size = self.clients * value.numel()
        with file.open("wb") as handle:
            handle.truncate(size * value.element_size())  # sparse: only written rows take up space
        return torch.from_file(str(file), shared=True, size=size, dtype=value.dtype).view(shape)

    def start(self, client: int) -> Tensors:
        """Returns the initial stored tensors of a client."""
        seed = torch.tensor(key(self.seed, "initial", client))
        common = {**self.part_table.common, **self.part_table.initial_values(client)}
        values = {**common, **self.method.initial(common, client, seed)}
        values.update(self.method.on_receive(values, at="start"))
        return {name: values[name] for name in self.blocks}

    def row(self, client: int) -> Tensors:
        """Returns the stored tensors of a client, to be read."""
        if not self.touched[client]:
            return self.start(client)
        return {name: block[client] for name, block in self.blocks.items()}

    def write(self, client: int, values: Tensors) -> None:
        """Writes ``values`` to the stored tensors of a client; names that are not stored are ignored."""
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
        """Returns all tensors of a client, not copied: stored ones, and the server's where the client receives them.

        Args:
            client: number of the client.
            server: server tensors.
            receives: True if the client receives all its parts; otherwise only the parts that go to all clients.
            at: ``"start"`` or ``"end"`` of a round, for the method's ``on_receive``.
            final: True after the final round, in which nothing is sent.
            round: number of the round; some parts are exchanged only in the first rounds.
        """
        values = {**self.part_table.common, **self.row(client)}
        for spec in self.part_table.received:
            if (receives and spec.exchanged(round)) or (spec.to_all and not (final and spec.stored)):
                assert spec.receive_from is not None
                values[spec.key] = server[spec.receive_from]
        if not receives:
            return values
        device = next((tensor.device for tensor in server.values()), torch.device("cpu"))
        return {**values, **self.method.on_receive(cast(Tensors, OnDevice(values, device)), at)}

    def store_received(self, clients: Iterable[int], server: Tensors, round: int = 1) -> None:
        """Stores the tensors that ``clients`` receive at the end of a round, where they are stored at all."""
        for client in clients:
            self.write(client, self.view(client, server, at="end", round=round))

    def close(self) -> None:
        """Frees memory and removes memory-mapped files."""
        self.blocks.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
