"""Stored tensors of all clients: one block ``[N, *shape]`` per tensor; client i owns row i.

Blocks are on the GPU that aggregates if they take at most half of its free memory. Otherwise they are in main memory,
allocated without touching them, so that memory grows with the clients that have trained, not with N; or on disk, as
sparse memory-mapped files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.errors import PflFastError
from pfl_fast.methods.base import Method, Tensors
from pfl_fast.randomness import key
from pfl_fast.transfer import to_host, write_rows

CPU = torch.device("cpu")


class StateError(PflFastError):
    """The clients' state cannot be stored."""


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


GPU_SHARE = 0.5  # largest share of a GPU's free memory for blocks; the rest is for training


class ClientState:
    """Stored tensors of all clients.

    Args:
        part_table: the part table.
        method: the method.
        clients: number of clients.
        seed: seed of the run.
        folder: folder of memory-mapped blocks, or None.
        device: device of the server's tensors. Blocks that fit are kept there, if ``folder`` is None.
    """

    def __init__(
        self,
        part_table: PartTable,
        method: Method,
        clients: int,
        seed: int,
        folder: Path | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.part_table = part_table
        self.method = method
        self.clients = clients
        self.seed = seed
        self.touched = torch.zeros(clients, dtype=torch.bool)
        self.changed = torch.zeros(clients, dtype=torch.bool)  # written since they were last sent to rank 0
        self.keeps = torch.ones(clients, dtype=torch.bool)  # state of others is not read from checkpoints
        self.blocks: Tensors = {}
        self._folder = folder
        self.device = device if folder is None and self._fits(device) else CPU
        self._common = {name: _copy(value, device) for name, value in part_table.common.items()}
        for spec in part_table.stored:
            self.blocks[spec.key] = self._allocate(spec.key, spec.value)

    def _fits(self, device: torch.device) -> bool:
        if device.type != "cuda":
            return True
        free, _ = torch.cuda.mem_get_info(device)
        return self.clients * self.part_table.bytes_per_client() <= GPU_SHARE * free

    def _allocate(self, name: str, value: Tensor) -> Tensor:
        shape = [self.clients, *value.shape]
        if self._folder is None:
            # Pages of main memory are allocated when a row is written.
            return torch.empty(shape, dtype=value.dtype, device=self.device)
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._file(name)
        size = self.clients * value.numel()
        with file.open("wb") as handle:
            handle.truncate(size * value.element_size())  # sparse: only reserved rows take up space
        try:
            return torch.from_file(str(file), shared=True, size=size, dtype=value.dtype).view(shape)
        except RuntimeError as error:
            raise StateError(f'{file}: cannot be mapped ({error}); use state="memory", or another disk') from None

    def reserve(self, clients: Iterable[int]) -> None:
        """Reserves disk space for the rows of clients; writing to a memory-mapped file without space kills the process.

        Does nothing for blocks in memory.
        """
        if self._folder is None:
            return
        rows = list(clients)
        for name, block in self.blocks.items():
            file, size = self._file(name), block[0].nbytes
            try:
                with file.open("r+b") as handle:
                    for row in rows if size else ():
                        os.posix_fallocate(handle.fileno(), row * size, size)
            except OSError as error:
                raise StateError(
                    f"{file}: no space for the state of {len(rows)} more clients ({error.strerror}); free some space, "
                    'or use state="memory". pfl-fast resume continues the run'
                ) from None

    def _file(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.block"

    def start(self, client: int) -> Tensors:
        """Returns the initial stored tensors of a client."""
        seed = torch.tensor(key(self.seed, "initial", client))
        common = {**self.part_table.common, **self.part_table.initial_values(client)}
        values = {**common, **self.method.initial(common, client, seed)}
        values.update(self.method.on_receive(values, at="start"))
        own = ((name, values[name]) for name in self.blocks)
        # Most tensors start from the common value, of which the device has a copy.
        return {n: self._common[n] if v is self.part_table.common[n] else v.to(self.device) for n, v in own}

    def row(self, client: int) -> Tensors:
        """Returns the stored tensors of a client, to be read."""
        if not self.touched[client]:
            return self.start(client)
        return {name: block[client] for name, block in self.blocks.items()}

    def write(self, client: int, values: Tensors) -> None:
        """Writes ``values`` to the stored tensors of a client; names that are not stored are ignored."""
        if not self.touched[client]:
            values = {**self.start(client), **values}
            self.reserve([client])
            self.touched[client] = True
        self.changed[client] = True
        for name, block in self.blocks.items():
            if name in values:
                block[client].copy_(values[name])

    def write_stack(self, clients: Sequence[int], values: Tensors) -> None:
        """Writes ``values [C, *shape]`` of C clients, which hold every stored tensor; others are ignored."""
        self.reserve(client for client in clients if not self.touched[client])
        stored = {name: values[name] for name in self.blocks}
        if self.device.type == "cpu":
            stored = to_host(stored)
        write_rows(self.blocks, clients, stored)
        self.touched[list(clients)] = self.changed[list(clients)] = True

    def view(
        self,
        client: int,
        server: Tensors,
        receives: bool = True,
        at: str = "start",
        final: bool = False,
        round: int = 1,
        row: Tensors | None = None,
    ) -> Tensors:
        """Returns all tensors of a client, not copied: stored ones, and the server's where the client receives them.

        Args:
            client: number of the client.
            server: server tensors.
            receives: True if the client receives all its parts; otherwise only the parts that go to all clients.
            at: ``"start"`` or ``"end"`` of a round, for the method's ``on_receive``.
            final: True after the final round, in which nothing is sent.
            round: number of the round; some parts are exchanged only in the first rounds.
            row: stored tensors of the client, if it belongs to another rank.
        """
        values = {**self._common, **(self.row(client) if row is None else row)}
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


def _copy(value: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor on a device; of an expanded number, such as zeros of momentum, only the number is copied."""
    if value.dim() == 0 or any(value.stride()):
        return value.to(device)
    return value[(0,) * value.dim()].to(device).expand(value.shape)
