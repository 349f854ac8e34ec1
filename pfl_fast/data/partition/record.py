"""A partition: the sample indices of each client, the options that made it, and their hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast import atomic
from pfl_fast.data import bounded
from pfl_fast.data.dataset import Dataset
from pfl_fast.errors import DataError
from pfl_fast.randomness import key, permutation

SPLITS = ("train", "test", "validation")
Indices = tuple[NDArray[np.int64], ...]


@dataclass(frozen=True, eq=False)
class Partition:
    """Sample indices of each client into a :class:`~pfl_fast.data.dataset.Dataset`.

    Takes arrays and lists of whole numbers, converts them to arrays, and checks them.

    Attributes:
        rule: name of the rule, for example ``"dirichlet"``.
        settings: options that determine the partition, for JSON.
        train: int64 indices of the training samples of each client.
        test: int64 indices of the test samples of each client.
        validation: int64 indices of the validation samples of each client, often empty. Default: none.
        names: names of the clients. Default: they have numbers.

    Raises:
        DataError: naming the argument that cannot be used.

    >>> Partition(train=[[0, 1], [2, 3]], test=[[4], [5]], names=["north", "south"]).clients
    2
    >>> Partition(train=[[0, 1], [2, 3]], test=[[4], [3]])
    Traceback (most recent call last):
    pfl_fast.errors.DataError: Partition: test and train of client 1 both have sample 3; expected each sample once
    """

    rule: str = "lists"
    settings: dict[str, Any] = field(default_factory=dict)
    train: Indices = ()
    test: Indices = ()
    validation: Indices = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lists = {split: _index_arrays(getattr(self, split), split) for split in SPLITS}
        lists["validation"] = lists["validation"] or tuple(np.zeros(0, np.int64) for _ in lists["train"])
        names = tuple(map(str, self.names))
        counts = {split: len(own) for split, own in lists.items()} | ({"names": len(names)} if names else {})
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise DataError(f"Partition: {shown} clients; expected as many")
        if repeated := sorted({name for name in names if names.count(name) > 1})[:1]:
            raise DataError(f"Partition: names has {repeated[0]!r} twice; expected a name for each client")
        _refuse_repeated(lists)
        for name, value in {**lists, "names": names}.items():
            object.__setattr__(self, name, value)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train)

    @cached_property
    def hash(self) -> str:
        """Hash of all indices and settings, 16 hex digits."""
        digest = hashlib.sha256(json.dumps([self.rule, self.settings], sort_keys=True).encode())
        for split in SPLITS:
            for index in getattr(self, split):
                digest.update(f"{split} {len(index)}\n".encode())
                digest.update(np.ascontiguousarray(index, dtype="<i8").tobytes())
        return digest.hexdigest()[:16]

    def check_fits(self, dataset: Dataset) -> None:
        """Raises if ``dataset`` has another number of samples than the data set of this partition."""
        expected = self.settings.get("samples", len(dataset))
        largest = max((int(index.max()) for s in SPLITS for index in getattr(self, s) if len(index)), default=-1)
        if expected != len(dataset) or largest >= len(dataset):
            raise DataError(
                f"the partition is of {self.settings.get('dataset', 'other data')} with "
                f"{max(expected, largest + 1)} samples, but {dataset.name} has {len(dataset)}; make it again"
            )

    def draw(self, clients: int, seed: int) -> Partition:
        """Returns a partition of ``clients`` of these clients, drawn at random, in the same order."""
        if not 1 <= clients <= self.clients:
            raise DataError(f"cannot draw {clients} of {self.clients} clients; draw between 1 and {self.clients}")
        chosen = np.sort(permutation(key(seed, "draw"), self.clients)[:clients]).tolist()
        train, test, validation = (tuple(getattr(self, split)[client] for client in chosen) for split in SPLITS)
        names = tuple(self.names[client] for client in chosen) if self.names else ()
        settings = {**self.settings, "draw": clients, "draw_seed": seed}
        return Partition(self.rule, settings, train, test, validation, names)

    def save(self, folder: str | Path) -> None:
        """Writes ``indices.npy`` and then ``partition.json``, which completes the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        parts = {split: getattr(self, split) for split in SPLITS}
        flat = np.concatenate([np.zeros(0, dtype=np.int64), *(index for part in parts.values() for index in part)])
        with atomic.new_file(folder / "indices.npy") as temporary, temporary.open("wb") as file:
            np.save(file, flat, allow_pickle=False)
        sizes = {split: [len(index) for index in part] for split, part in parts.items()}
        about = {"format": 1, "rule": self.rule, "settings": self.settings, "hash": self.hash, "sizes": sizes}
        about |= {"names": list(self.names)} if self.names else {}
        atomic.write_text(folder / "partition.json", json.dumps(about, indent=1) + "\n")

    @staticmethod
    def load(folder: str | Path) -> Partition:
        """Loads a saved partition; raises if it is incomplete or was changed."""
        folder = Path(folder)
        about = _read_json(folder / "partition.json")
        flat = _read_indices(folder / "indices.npy")
        try:
            sizes = [[int(size) for size in about["sizes"][split]] for split in SPLITS]
            rule = str(about.get("rule") or about["kind"])  # files of earlier versions say "kind"
            settings, expected = dict(about["settings"]), str(about["hash"])
            names = tuple(map(str, about.get("names", ())))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _broken(folder / "partition.json", f"an entry is missing or wrong ({error})") from error
        flat_sizes = [size for part in sizes for size in part]
        if len({len(part) for part in sizes}) != 1 or min(flat_sizes, default=0) < 0 or sum(flat_sizes) != len(flat):
            raise _broken(folder, f"partition.json describes {sum(flat_sizes)} indices, indices.npy has {len(flat)}")
        pieces = iter(np.split(flat, np.cumsum(flat_sizes)[:-1]) if flat_sizes else [])
        train, test, validation = (tuple(next(pieces) for _ in part) for part in sizes)
        result = Partition(rule, settings, train, test, validation, names)
        if result.hash != expected:
            raise _broken(folder, f"its hash is {result.hash}, but {expected} was written")
        return result


def _index_arrays(lists: Iterable[Any], split: str) -> Indices:
    """Returns one int64 array for each client."""
    if isinstance(lists, (str, bytes, dict)) or not isinstance(lists, Iterable):
        raise DataError(f"Partition: {split} is {type(lists).__name__}; expected a list of sample numbers per client")
    result = []
    for client, values in enumerate(lists):
        try:
            index = np.asarray(values if len(values) else np.zeros(0, np.int64))
        except (TypeError, ValueError):  # a number, or rows of different lengths
            index = np.zeros((), float)
        if index.ndim != 1 or index.dtype.kind not in "iu" or index.min(initial=0) < 0:
            raise DataError(
                f"Partition: {split} of client {client} is no list of sample numbers: expected whole numbers from 0"
            )
        result.append(index.astype(np.int64, copy=False))
    return tuple(result)


def _refuse_repeated(lists: dict[str, Indices]) -> None:
    """Raises if a client has a sample twice, in one split or in two."""
    none = np.zeros(0, np.int64)
    filled = [np.full(len(index), client) for own in lists.values() for client, index in enumerate(own)]
    owners = np.concatenate([none, *filled])
    samples = np.concatenate([none, *(index for own in lists.values() for index in own)])
    order = np.lexsort((samples, owners))
    repeated = order[1:][(np.diff(owners[order]) == 0) & (np.diff(samples[order]) == 0)]
    if not len(repeated):
        return
    client, sample = int(owners[repeated[0]]), int(samples[repeated[0]])
    first, *others = [split for split, own in lists.items() if sample in own[client]]
    what = f"{others[0]} and {first} of client {client} both have" if others else f"{first} of client {client} repeats"
    raise DataError(f"Partition: {what} sample {sample}; expected each sample once")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        about = json.loads(file.read_text())
    except FileNotFoundError:
        raise DataError(
            f"{file.parent} holds no partition: there is no {file.name}; make one with Partition.save"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise _broken(file, str(error)) from error
    if not isinstance(about, dict) or about.get("format") != 1:
        raise _broken(file, "it is not a partition of format 1")
    return about


def _read_indices(file: Path) -> NDArray[np.int64]:
    try:
        flat = np.array(bounded.map_npy(file, "r"))
    except Exception as error:  # NumPy parses the header as Python, and raises errors of many types
        raise _broken(file, str(error)) from error
    if not isinstance(flat, np.ndarray) or flat.dtype != np.int64 or flat.ndim != 1 or (len(flat) and flat.min() < 0):
        raise _broken(file, "it does not hold one row of indices")
    return flat


def _broken(file: Path, what: str) -> DataError:
    return DataError(f"{file}: the saved partition cannot be used, {what}; make it again")
