"""Batches for all clients from one set of flat arrays: no copies, no workers, one operator call for many samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_fast import ops
from pfl_fast.data import augment as augmentation
from pfl_fast.data.dataset import Dataset
from pfl_fast.data.partition import SPLITS, Partition
from pfl_fast.errors import DataError, did_you_mean
from pfl_fast.randomness import bits, key, permutation

# Batches are cut from one larger tensor of about this size: large enough that calls cost nothing, small enough for
# the cache.
CHUNK_BYTES = 1 << 20
# Of tests, and of what is computed once per round: activations stay in the cache. The same on every device, as noise in
# tests is drawn by batch.
EVALUATION_BATCH = 100


class Samples(NamedTuple):
    """Samples ``x [*batch, ...]`` with their labels ``y [*batch]`` int64."""

    x: Tensor
    y: Tensor


class Step(NamedTuple):
    """One client's batch: ``x [B, ...]``, ``y [B]``, and ``place [B]``, where in the client's list the samples are."""

    x: Tensor
    y: Tensor
    place: Tensor


class Group(NamedTuple):
    """Clients with equally many samples at a step: their ``rows``, ``x [C, B, ...]``, ``y`` and ``place [C, B]``."""

    rows: slice
    x: Tensor
    y: Tensor
    place: Tensor

    def first(self, count: int) -> Group:
        """Of its first ``count`` clients, or of all if there are no more."""
        begin, end = self.rows.start, min(self.rows.stop, self.rows.start + count)
        return Group(slice(begin, end), self.x[:count], self.y[:count], self.place[:count])


class Visits(NamedTuple):
    """Samples in the order of an epoch: index in the data set, place in the client's list, key of the augmentation."""

    sample: Tensor
    place: Tensor
    keys: Tensor | None

    def map(self, function: Callable[[Tensor], Tensor]) -> Visits:
        """The function of all three."""
        return Visits(function(self.sample), function(self.place), None if self.keys is None else function(self.keys))

    def cut(self, begin: int, end: int) -> Visits:
        """Those from ``begin`` to ``end`` of the first dimension."""
        return self.map(lambda values: values[begin:end])

    def fold(self, *shape: int) -> Visits:
        """In another shape."""
        return self.map(lambda values: values.view(shape))


def _stack(visits: Sequence[Visits]) -> Visits:
    keys = [v.keys for v in visits if v.keys is not None]
    sample, place = (torch.stack(values) for values in ([v.sample for v in visits], [v.place for v in visits]))
    return Visits(sample, place, torch.stack(keys) if keys else None)


class FederatedData:
    """All clients' samples, and the order in which each client sees them.

    Args:
        dataset: the samples; memory-mapped arrays are not read until asked for.
        partition: who has which.
        batch_size: of training.
        seed: orders and augmentation follow from it.
        shuffle: a new order in every epoch; otherwise always that of the partition.
        drop_last: leave out a last batch that is not full.
        skip_single: leave out a last batch of one sample, which BatchNorm cannot train on.
        augment: ``"none"``, ``"flip"``, ``"flip-rotate"`` or ``"crop-flip"``, of training images.
        device: where all arrays are put.
        dtype: of images and features.
        channels_last: memory format of images.

    Attributes:
        clients: how many.
        num_classes: of the data set.
        input_shape: of one sample, as a model gets it.
    """

    def __init__(
        self,
        dataset: Dataset,
        partition: Partition,
        *,
        batch_size: int = 10,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        skip_single: bool = False,
        augment: str = "none",
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        channels_last: bool = True,
    ) -> None:
        _check_options(dataset, batch_size, skip_single, augment)
        partition.check_fits(dataset)
        self.dataset, self.partition = dataset, partition
        self.clients, self.num_classes, self.input_shape = partition.clients, len(dataset.classes), dataset.input_shape
        self.batch_size, self.seed, self.shuffle, self.augment = batch_size, seed, shuffle, augment
        self.device, self.dtype, self.channels_last = torch.device(device), dtype, channels_last
        self._kind = dataset.kind
        self._x, self._y = (_tensor(array).to(self.device) for array in (dataset.x, dataset.y))
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        self._mean, self._std = (torch.tensor(v, dtype=exact, device=device) for v in (dataset.mean, dataset.std))
        self._black = -self._mean / self._std
        self._indices: dict[str, list[Tensor]] = {
            s: [_tensor(i).to(self.device) for i in getattr(partition, s)] for s in SPLITS
        }
        self._sizes: dict[str, NDArray[np.int64]] = {
            split: np.array([len(index) for index in lists], dtype=np.int64) for split, lists in self._indices.items()
        }
        self._full, self._rest = np.divmod(self.train_sizes, batch_size)
        self._rest[(self._rest < batch_size * drop_last) | (self._rest <= int(skip_single))] = 0
        self._refuse_clients_without_steps()

    @property
    def train_sizes(self) -> NDArray[np.int64]:
        """``[clients]``, training samples of each."""
        return self._sizes["train"]

    @property
    def test_sizes(self) -> NDArray[np.int64]:
        """``[clients]``, test samples of each."""
        return self._sizes["test"]

    @property
    def validation_sizes(self) -> NDArray[np.int64]:
        """``[clients]``, validation samples of each."""
        return self._sizes["validation"]

    @property
    def augments(self) -> bool:
        """Whether training samples change from epoch to epoch."""
        return self.augment != "none"

    @property
    def tests(self) -> list[str]:
        """The splits that clients are tested on."""
        return ["test"] + (["validation"] if self.validation_sizes.any() else [])

    @property
    def bytes(self) -> int:
        """Size of the arrays of samples and labels."""
        return self._x.nbytes + self._y.nbytes

    def to(self, device: torch.device) -> FederatedData:
        """The same on another device; arrays that are there already are shared."""
        if device == self.device:
            return self
        other = copy(self)
        other.device = device
        moved = (self._x, self._y, self._mean, self._std, self._black)
        other._x, other._y, other._mean, other._std, other._black = (t.to(device) for t in moved)
        other._indices = {split: [i.to(device) for i in lists] for split, lists in self._indices.items()}
        return other

    def whole(self) -> FederatedData:
        """The same clients with one batch per epoch, of all samples that their batches have here."""
        other = copy(self)
        other._rest = self._full * self.batch_size + self._rest
        other._full = np.zeros_like(self._full)
        return other

    def steps(self, client: int) -> int:
        """Batches in each of the client's epochs."""
        return int(self._full[client] + (self._rest[client] > 0))

    def indices(self, split: str, client: int) -> Tensor:
        """The client's samples, as indices of the data set."""
        return self._lists(split)[client]

    def union(self, split: str) -> Tensor:
        """Samples of all clients, each once and sorted: clients may share tests."""
        samples: Tensor = torch.cat(self._lists(split)).unique()
        return samples

    def places(self, client: int, round: int, epoch: int) -> Tensor:
        """``[n]``, the places in the client's list of training samples that this epoch visits, in turn."""
        count = len(self._indices["train"][client])
        if not self.shuffle:
            return torch.arange(count, device=self.device)
        places: Tensor = torch.from_numpy(permutation(key(self.seed, "order", client, round, epoch), count))
        return places.to(self.device)

    def order(self, client: int, round: int, epoch: int) -> Tensor:
        """``[n]``, the client's training samples in the order of this epoch: a function of the seed and arguments."""
        return self._indices["train"][client][self.places(client, round, epoch)]

    def augment_keys(self, client: int, round: int, epoch: int) -> Tensor | None:
        """``[n]``, what decides the augmentation of each sample in :meth:`order`; None without augmentation."""
        if not self.augments:
            return None
        draws = bits(key(self.seed, "augment", client, round, epoch), len(self._indices["train"][client]))
        return torch.from_numpy((draws >> np.uint64(1)).astype(np.int64)).to(self.device)

    def take(self, index: Tensor, augment_key: Tensor | None = None) -> Samples:
        """Samples ``[*batch]`` of the data set as ``x [*batch, ...]`` (text int64) and ``y [*batch]``."""
        return Samples(self._take_x(index, augment_key), self._y[index])

    def batches(self, client: int, round: int, epoch: int) -> Iterator[Step]:
        """One epoch of one client."""
        visits = self._visits(client, round, epoch)
        full = int(self._full[client]) * self.batch_size
        for x, y, place in self._chunks(visits.cut(0, full).fold(-1, self.batch_size)):
            yield Step(x, y, place)
        if rest := int(self._rest[client]):
            yield Step(*self._taken(visits.cut(full, full + rest)))

    def stack_order(self, clients: Sequence[int]) -> list[int]:
        """The clients as :meth:`stacked` has them: most batches first, then the larger last batch."""
        return sorted(clients, key=lambda c: (-self.steps(c), -(self._rest[c] or self.batch_size), c))

    def stacked(self, clients: Sequence[int], round: int, epoch: int) -> Iterator[list[Group]]:
        """One epoch of several clients at once, with the samples and augmentation of :meth:`batches`; never padded.

        At every step those still active are the first of :meth:`stack_order`, and a group's ``rows`` are places in it:
        first all with a full batch, then a group for each size of smaller last batches.
        """
        ranked = self.stack_order(clients)
        visits = [self._visits(client, round, epoch) for client in ranked]
        full = self._full[ranked]
        for begin, end in pairwise([*sorted({0, *full.tolist()}), None]):
            extra = self._last_groups(ranked, visits, begin)
            if end is None:
                if extra:
                    yield extra
                return
            active = int((full > begin).sum())
            rows = [v.cut(begin * self.batch_size, end * self.batch_size) for v in visits[:active]]
            # [clients, steps, batch] -> [steps, clients, batch]
            steps = (
                _stack(rows).fold(active, end - begin, self.batch_size).map(lambda t: t.transpose(0, 1).contiguous())
            )
            for x, y, place in self._chunks(steps):
                yield [Group(slice(0, active), x, y, place), *extra]
                extra = []

    def evaluation(
        self, split: str, client: int | None = None, batch_size: int = EVALUATION_BATCH
    ) -> Iterator[Samples]:
        """A client's samples (or all clients', see :meth:`union`) in their order, without augmentation."""
        samples = self.union(split) if client is None else self.indices(split, client)
        for index in samples.split(batch_size):
            if len(index):
                yield self.take(index)

    def _lists(self, split: str) -> list[Tensor]:
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}{did_you_mean(split, SPLITS)}")
        return self._indices[split]

    def _take_x(self, index: Tensor, keys: Tensor | None) -> Tensor:
        if self._kind == "images":
            x = ops.take_normalized(
                self._x, index, self._mean, self._std, channels_last=self.channels_last, dtype=self.dtype
            )
            return x if keys is None else augmentation.augment(self.augment, x, keys, self._black)
        return self._x[index].to(torch.int64 if self._kind == "text" else self.dtype)

    def _visits(self, client: int, round: int, epoch: int) -> Visits:
        place = self.places(client, round, epoch)
        return Visits(self._indices["train"][client][place], place, self.augment_keys(client, round, epoch))

    def _taken(self, visits: Visits) -> tuple[Tensor, Tensor, Tensor]:
        return (*self.take(visits.sample, visits.keys), visits.place)

    def _chunks(self, steps: Visits) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The steps of ``[steps, *batch]`` visits one by one, taken many at once."""
        if len(steps.sample) == 0:
            return
        size = max(1, CHUNK_BYTES // (steps.sample[0].numel() * self._x[0].numel() * self.dtype.itemsize))
        labels, places = self._y[steps.sample].unbind(), steps.place.unbind()
        for first in range(0, len(labels), size):
            part = slice(first, first + size)
            chunk = steps.cut(first, first + size)
            yield from zip(self._take_x(chunk.sample, chunk.keys).unbind(), labels[part], places[part], strict=True)

    def _last_groups(self, ranked: list[int], visits: list[Visits], step: int) -> list[Group]:
        """Groups of the clients whose last, smaller batch comes at this step."""
        rows = [row for row, client in enumerate(ranked) if self._full[client] == step and self._rest[client]]
        groups = []
        for size in dict.fromkeys(int(self._rest[ranked[row]]) for row in rows):
            own = [row for row in rows if self._rest[ranked[row]] == size]
            begin = step * self.batch_size
            taken = self._taken(_stack([visits[row].cut(begin, begin + size) for row in own]))
            groups.append(Group(slice(own[0], own[-1] + 1), *taken))
        return groups

    def _refuse_clients_without_steps(self) -> None:
        for client, size in enumerate(self.train_sizes.tolist()):
            if size == 0:
                raise DataError(f"client {client} has no training samples; take fewer clients, or another seed")
            if self.steps(client) == 0:
                raise DataError(
                    f"client {client} has {size} training samples, which drop_last or skip_single leaves no batch of "
                    f"(batch size {self.batch_size}); take a smaller batch size, fewer clients, or keep the last batch"
                )


def _check_options(dataset: Dataset, batch_size: int, skip_single: bool, augment: str) -> None:
    if batch_size < 1 or (skip_single and batch_size == 1):
        raise ValueError(f"batch_size must be at least {1 + skip_single}, not {batch_size}")
    if augment not in augmentation.KINDS:
        hint = did_you_mean(augment, augmentation.KINDS)
        raise ValueError(f"augment must be one of {', '.join(augmentation.KINDS)}, not {augment!r}{hint}")
    if augment != "none" and dataset.kind != "images":
        raise ValueError(f"augment={augment!r} is for images, but {dataset.name} is {dataset.kind}")
    if dataset.kind == "images" and not len(dataset.mean) == len(dataset.std) == dataset.x.shape[-1]:
        raise DataError(f"{dataset.name}: mean and std must have one number for each of {dataset.x.shape[-1]} channels")


def _tensor(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        # Memory-mapped files are opened for reading only, and nothing here writes.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))
