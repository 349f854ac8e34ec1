"""A partition: the sample indices of each client, the options that made it, and their hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
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

    Attributes:
        rule: name of the rule, for example ``"dirichlet"``.
        settings: options that determine the partition, for JSON.
        train: int64 indices of the training samples of each client.
        test: int64 indices of the test samples of each client.
        validation: int64 indices of the validation samples of each client, often empty.
    """

    rule: str
    settings: dict[str, Any]
    train: Indices
    test: Indices
    validation: Indices

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
        return Partition(self.rule, {**self.settings, "draw": clients, "draw_seed": seed}, train, test, validation)

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
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _broken(folder / "partition.json", f"an entry is missing or wrong ({error})") from error
        flat_sizes = [size for part in sizes for size in part]
        if len({len(part) for part in sizes}) != 1 or min(flat_sizes, default=0) < 0 or sum(flat_sizes) != len(flat):
            raise _broken(folder, f"partition.json describes {sum(flat_sizes)} indices, indices.npy has {len(flat)}")
        pieces = iter(np.split(flat, np.cumsum(flat_sizes)[:-1]) if flat_sizes else [])
        train, test, validation = (tuple(next(pieces) for _ in part) for part in sizes)
        result = Partition(rule, settings, train, test, validation)
        if result.hash != expected:
            raise _broken(folder, f"its hash is {result.hash}, but {expected} was written")
        return result


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
