"""A finished run: settings, results, data, and models of clients, read from its folder without training."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_fast.engine.results.client_rows import client_names
from pfl_fast.engine.results.snapshots import Snapshot, read_snapshots
from pfl_fast.errors import ConfigError
from pfl_fast.experiment import Experiment
from pfl_fast.methods.base import Batch, Client, Method, Tensors


class AnalysisError(ConfigError):
    """An analysis does not suit the run, or lacks data that the run did not keep."""


@dataclass(frozen=True)
class AnalysisOptions:
    """Options of an analysis.

    Attributes:
        split: samples to use, ``"test"`` or ``"train"``; None: those of the paper, or test samples if it does not say.
        samples: largest number of samples of each client.
        client: client of analyses that show single samples.
        layers: parts of the model, such as ``extractor``; empty: those of the method.
        seed: seed of random draws.
    """

    split: str | None = None
    samples: int = 500
    client: int = 0
    layers: tuple[str, ...] = ()
    seed: int = 0


class FinishedRun:
    """A run whose folder is read.

    Args:
        folder: folder of the run.
        log: receives messages.
        trusted: load models that somebody else's run names as ``module:attribute``.
        data: values of :meth:`Experiment.resume`, such as ``data_dir`` or objects in the place of names.
    """

    def __init__(
        self,
        folder: str | Path,
        log: Callable[[str], None] = lambda _message: None,
        trusted: bool = True,
        **data: Any,
    ) -> None:
        self.folder = Path(folder)
        self.experiment = Experiment.resume(folder, log=log, trusted=trusted, device="cpu", snapshots=0, **data)
        if not self.experiment.state.rounds_done:
            self.close()
            raise AnalysisError(f"{folder}: the run has no finished rounds; pfl-fast resume {folder} trains them")

    def close(self) -> None:
        """Releases the folder of the run."""
        self.experiment.close()

    def __enter__(self) -> FinishedRun:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def method(self) -> Method:
        """Method of the run."""
        return self.experiment.method

    @property
    def name(self) -> str:
        """Name of the method on the command line."""
        return self.experiment.method_name

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.experiment.data.clients

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes."""
        return self.experiment.dataset.classes

    @property
    def rounds(self) -> int:
        """Number of finished rounds."""
        return self.experiment.state.rounds_done

    @cached_property
    def client_names(self) -> list[str]:
        """Names of the clients: of their domains, or numbers."""
        return [names["client_name"].removeprefix("client ") for names in client_names(self.experiment.data)]

    @property
    def client_label(self) -> str:
        """Label of an axis of clients."""
        return "client" if self.experiment.dataset.domain is None else "client (domain)"

    def facts(self) -> str:
        """Returns data, method, rounds and seed, for captions."""
        e, s = self.experiment, self.experiment.settings
        source = "" if e.dataset.source == "real" else f" ({e.dataset.source})"
        return (
            f"Data: {e.dataset.name}{source}, {self.clients} clients, partition {e.partition.rule}. Method: "
            f"{self.method.title}, model {s.model}. {self.rounds} rounds, seed {s.seed}."
        )

    def option(self, name: str) -> Any:
        """Returns an option of the method, or None."""
        return getattr(self.experiment.options, name, None)

    def samples(self, client: int, split: str, count: int) -> tuple[Tensor, Tensor]:
        """Returns at most ``count`` samples of a client, evenly spaced over its list: ``x [n, ...]``, ``y [n]``."""
        index = self.experiment.data.indices(split, client)
        if len(index) > count:
            index = index[torch.linspace(0, len(index) - 1, count).long()]
        return tuple(self.experiment.data.take(index))  # type: ignore[return-value]

    def tensors(self, client: int) -> Tensors:
        """Returns all tensors with which a client is tested at the end of the run."""
        return self.experiment.round.evaluation_tensors(client)

    def check_client(self, client: int) -> None:
        """Raises if there is no client of this number."""
        if client >= self.clients:
            raise AnalysisError(f"client: must be from 0 to {self.clients - 1}, got {client}")

    def module(self, tensors: Tensors) -> Client:
        """Returns a client's modules with the given tensors, in evaluation mode."""
        client = self.experiment.part_table.new_client(torch.device("cpu"))
        names = set(client.state_dict())
        client.load_state_dict({name: value.cpu() for name, value in tensors.items() if name in names})
        return client.eval()

    def client(self, number: int) -> Client:
        """Returns the modules of a client at the end of the run, in evaluation mode."""
        return self.module(self.tensors(number))

    def snapshots(self) -> Sequence[Snapshot]:
        """Returns the snapshots of the run; raises if there are none."""
        table = self.experiment.part_table
        found = read_snapshots(self.folder, table, self.method, self.rounds)
        if not found:
            raise AnalysisError("the run kept no models of its rounds; train it with --snapshots 10")
        return found

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of ``clients.csv``: numbers as float, ``recorded`` as a dictionary, empty cells as None."""
        with (self.folder / "clients.csv").open(newline="") as file:
            return [{name: _value(name, cell) for name, cell in row.items()} for row in csv.DictReader(file)]

    def recorded(self, quantity: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns rounds ``[R]`` and a quantity that the method records ``[R, clients]``; NaN where a client did not.

        Raises if no round has it.
        """
        found = {(int(r["round"]), int(r["client"])): r["recorded"].get(quantity) for r in self.rows if r["recorded"]}
        numbers = sorted({number for (number, _), value in found.items() if value is not None})
        if not numbers:
            raise AnalysisError(f"no round of the run recorded {quantity}")
        values = np.full((len(numbers), self.clients), np.nan)
        for (number, client), value in found.items():
            if value is not None:
                values[numbers.index(number), client] = value
        return np.array(numbers), values


def shared_parameters(run: FinishedRun) -> list[str]:
    """Returns the parameters that clients receive, train and upload."""
    table = run.experiment.part_table
    return [s.key for s in table.uploaded if s.parameter and s.receive_from and table.parts[s.part].trained]


def predictions(method: Method, client: Client, x: Tensor, size: int = 200) -> Tensor:
    """Returns ``[n, C]`` logits of a client's model."""
    with torch.no_grad():
        return torch.cat(
            [method.predict(client, Batch(part, _labels(part), torch.tensor(0))) for part in x.split(size)]
        )


def outputs(function: Callable[[Tensor], Tensor], x: Tensor, size: int = 200) -> Tensor:
    """Returns ``function(x)`` computed in batches, without gradients."""
    with torch.no_grad():
        return torch.cat([function(part) for part in x.split(size)])


def _labels(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.int64)


def _value(name: str, cell: str) -> Any:
    if name in ("client_name", "domain"):
        return cell
    if cell == "":
        return None
    return json.loads(cell) if cell[0] in "[{" else float(cell)
