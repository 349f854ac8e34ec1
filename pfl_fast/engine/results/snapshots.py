"""Models of some rounds, written during training for analyses: before and after local training and aggregation.

    snapshots/round-000010/server-before.safetensors    server tensors that the clients received
    snapshots/round-000010/client-00003-before...       the client's own tensors before local training
    snapshots/round-000010/client-00003...              its tensors after local training, except for received copies
    snapshots/round-000010/server.safetensors           server tensors after aggregation; completes the snapshot

The models are put together from these files by :meth:`Snapshot.before`, ``after_local`` and ``after_aggregation``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from pfl_fast import atomic
from pfl_fast.engine.results.disk_errors import RunFolderError, disk_errors
from pfl_fast.engine.results.listeners import Listener, RunView
from pfl_fast.engine.results.records import RoundRecord
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.engine.state.tensor_file import save_file
from pfl_fast.methods.base import Method, Tensors


def snapshot_rounds(count: int, rounds: int) -> list[int]:
    """Returns at most ``count`` rounds at equal distances, the first and the last among them.

    >>> snapshot_rounds(3, 21), snapshot_rounds(1, 21), snapshot_rounds(9, 2)
    ([1, 11, 21], [21], [1, 2])
    """
    if count < 2:
        return [rounds] * count
    return sorted({1 + round(number * (rounds - 1) / (count - 1)) for number in range(count)})


class Snapshots(Listener):
    """Writes the snapshots of a run to its folder. A resumed run completes those that were begun.

    Args:
        folder: folder of the run.
        count: number of rounds to keep.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.run, self.folder, self.count = folder, folder / "snapshots", count
        self._rounds: list[int] = []
        self._kept: set[str] = set()

    def started(self, run: RunView) -> None:
        """Chooses the rounds; keeps the models before the first one if it comes next."""
        table = run.state.clients.part_table
        self._rounds = snapshot_rounds(self.count, run.settings.rounds)
        self._kept = {spec.key for spec in table.model_specs if spec.upload_to or spec.receive_from is None}
        done = run.state.rounds_done  # its checkpoint may have been the last file that the process wrote
        if done in self._rounds and not self._file(done, "server").exists():
            self._write(done, "server", run.state.server)
        self._before(run)

    def _before(self, run: RunView) -> None:
        number, clients = run.state.rounds_done + 1, run.state.clients
        if number not in self._rounds or run.state.unfinished.reports:
            return
        self._write(number, "server-before", run.state.server)
        for client in range(clients.clients):
            self._write(number, f"client-{client:05d}-before", clients.row(client))

    def client_trained(self, round: int, client: int, tensors: Tensors, upload: Tensors) -> None:  # noqa: ARG002
        """Keeps the client's tensors after local training."""
        if round in self._rounds:
            self._write(round, f"client-{client:05d}", {name: tensors[name] for name in self._kept})

    def round_done(self, run: RunView, record: RoundRecord) -> None:
        """Keeps the server's tensors after aggregation, and the models before the next round."""
        if record.round in self._rounds:
            self._write(record.round, "server", run.state.server)
        self._before(run)

    def _write(self, round: int, name: str, tensors: Tensors) -> None:
        file = self._file(round, name)
        # Tensors of different names may share memory, which files cannot.
        values = {n: t.detach().clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}
        with disk_errors(file, self.run):
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic.new_file(file) as temporary:
                save_file(values, temporary, {"digest": _digest(values)})

    def _file(self, round: int, name: str) -> Path:
        return self.folder / f"round-{round:06d}" / f"{name}.safetensors"


def _digest(tensors: Tensors) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Snapshot:
    """Models of one round.

    Attributes:
        round: number of the round.
        folder: folder of its files.
        part_table: part table of the run.
        method: method of the run.
    """

    round: int
    folder: Path
    part_table: PartTable
    method: Method

    @property
    def clients(self) -> list[int]:
        """Clients that trained in the round."""
        return sorted(int(file.stem[7:]) for file in self.folder.glob("client-?????.safetensors"))

    def server(self, before: bool = False) -> Tensors:
        """Returns the server's tensors after aggregation, or ``before`` the round."""
        return self._read("server-before" if before else "server")

    def before(self, client: int) -> Tensors:
        """Returns all tensors with which a client began local training."""
        table = self.part_table
        values = {**table.common, **table.initial_values(client), **self._read(f"client-{client:05d}-before")}
        return self._received(values, self.server(before=True), "start")

    def after_local(self, client: int) -> Tensors:
        """Returns all tensors of a client at the end of local training."""
        return {**self.before(client), **self._read(f"client-{client:05d}")}

    def after_aggregation(self, client: int) -> Tensors:
        """Returns all tensors of a client that has received the aggregate; raises if clients receive mixtures."""
        if self.part_table.mixed:
            raise ValueError(f"{self.method.title}: snapshots do not hold the clients' mixtures of uploads")
        return self._received(self.after_local(client), self.server(), "end")

    def _received(self, values: Tensors, server: Tensors, at: str) -> Tensors:
        received = [spec for spec in self.part_table.received if spec.exchanged(self.round)]
        values = {**values, **{spec.key: server[str(spec.receive_from)] for spec in received}}
        return {**values, **self.method.on_receive(values, at)}

    def _read(self, name: str) -> Tensors:
        file = self.folder / f"{name}.safetensors"
        try:
            with safe_open(file, "pt") as opened:
                tensors: Tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 not a dict
                expected = (opened.metadata() or {}).get("digest")
        except (OSError, SafetensorError) as error:
            raise self._unusable(file, f"missing or damaged ({error})") from error
        if _digest(tensors) != expected:
            raise self._unusable(file, "was changed since the run wrote it")
        return tensors

    def _unusable(self, file: Path, problem: str) -> RunFolderError:
        return RunFolderError(f"{file}: {problem}; delete {self.folder} to leave this snapshot out")


def read_snapshots(run: Path, part_table: PartTable, method: Method, rounds_done: int) -> Sequence[Snapshot]:
    """Returns the complete snapshots in the folder of a run, up to the round ``rounds_done``."""
    folders = {int(file.parent.name[6:]): file.parent for file in run.glob("snapshots/round-*/server.safetensors")}
    return [Snapshot(n, folder, part_table, method) for n, folder in sorted(folders.items()) if n <= rounds_done]
