"""Batches of all clients from one set of flat arrays: no copies, no loader processes, one operator call per chunk."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from pfl_fast.transfer import to_device

# Batches are cut from a larger tensor of about this size: call overhead is negligible, and it fits the cache.
CHUNK_BYTES = 1 << 20
GPU_CHUNK_BYTES = 1 << 24  # a launch takes as long as copying this much
# Batch size of tests and cached values: activations fit the cache. The same on every device, since the noise of tests
# is seeded per batch.
EVALUATION_BATCH = 100
STACKED_EVALUATION = 4000  # most samples in one stacked evaluation batch


def chunk_bytes(device_type: str) -> int:
    """Returns the size of the tensor from which batches are cut."""
    return GPU_CHUNK_BYTES if device_type == "cuda" else CHUNK_BYTES


class Samples(NamedTuple):
    """Samples ``x [*batch, ...]`` with their labels ``y [*batch]`` int64."""

    x: Tensor
    y: Tensor


class ClientBatch(NamedTuple):
    """One client's batch: ``x [B, ...]``, ``y [B]`` and ``position [B]`` of the samples in the client's list."""

    x: Tensor
    y: Tensor
    position: Tensor


class StackedBatch(NamedTuple):
    """Equally large batches of the clients in ``rows``: ``x [C, B, ...]``, ``y [C, B]`` and ``position [C, B]``.

    ``position`` is that of the samples in the lists of all clients of the stack, one after the other.
    """

    rows: slice
    x: Tensor
    y: Tensor
    position: Tensor

    def first(self, count: int) -> StackedBatch:
        """Returns the batches of at most the first ``count`` clients."""
        begin, end = self.rows.start, min(self.rows.stop, self.rows.start + count)
        return StackedBatch(slice(begin, end), self.x[:count], self.y[:count], self.position[:count])


class SampleOrder(NamedTuple):
    """Samples in the order of an epoch: index in the data set, position in the client's list, augmentation key."""

    sample: Tensor
    position: Tensor
    keys: Tensor | None

    def map(self, function: Callable[[Tensor], Tensor]) -> SampleOrder:
        """Applies ``function`` to every field."""
        keys = None if self.keys is None else function(self.keys)
        return SampleOrder(function(self.sample), function(self.position), keys)

    def cut(self, begin: int, end: int) -> SampleOrder:
        """Returns entries ``begin`` to ``end`` of the first dimension."""
        return self.map(lambda values: values[begin:end])

    def fold(self, *shape: int) -> SampleOrder:
        """Returns the entries in another shape."""
        return self.map(lambda values: values.view(shape))


class Visits(NamedTuple):
    """Order of an epoch on the host: position in the client's list, augmentation key."""

    position: Tensor
    keys: Tensor | None

    def map(self, function: Callable[[Tensor], Tensor]) -> Visits:
        """Applies ``function`` to every field."""
        return Visits(function(self.position), None if self.keys is None else function(self.keys))

    def cut(self, begin: int, end: int) -> Visits:
        """Returns entries ``begin`` to ``end``."""
        return self.map(lambda values: values[begin:end])


def _stack(visits: Sequence[Visits]) -> Visits:
    keys = [own.keys for own in visits if own.keys is not None]
    return Visits(torch.stack([own.position for own in visits]), torch.stack(keys) if keys else None)


class FederatedData:
    """Samples of all clients, and the order in which each client visits them.

    Args:
        dataset: samples; memory-mapped arrays are read on demand.
        partition: samples of each client.
        batch_size: training batch size.
        seed: seed of sample orders and augmentation.
        shuffle: draw a new order in every epoch; otherwise use the order of the partition.
        drop_last: drop an incomplete last batch.
        skip_single: drop a last batch of one sample, which BatchNorm cannot train on.
        merge_last: add a last batch of at most this number of samples to the batch before it; 0: never.
        augment: augmentation of training images, one of :data:`pfl_fast.data.augment.AUGMENTATIONS`.
        dtype: dtype of images and features.

    Attributes:
        clients: number of clients.
        num_classes: number of classes.
        input_shape: shape of one sample, as a model receives it.
        train_sizes, test_sizes, validation_sizes: ``[clients]`` int64 numbers of samples.
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
        merge_last: int = 0,
        augment: str = "none",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        _check_options(dataset, batch_size, skip_single, augment)
        partition.check_fits(dataset)
        self.dataset, self.partition = dataset, partition
        self.clients, self.num_classes, self.input_shape = partition.clients, len(dataset.classes), dataset.input_shape
        self.batch_size, self.seed, self.shuffle, self.augment = batch_size, seed, shuffle, augment
        self.device, self.dtype = torch.device("cpu"), dtype
        self._modality = dataset.modality
        self._x, self._y = (_tensor(array) for array in (dataset.x, dataset.y))
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        self._mean, self._std = (torch.tensor(values, dtype=exact) for values in (dataset.mean, dataset.std))
        self._black = -self._mean / self._std
        self._place({split: [_tensor(index) for index in getattr(partition, split)] for split in SPLITS})
        self.train_sizes, self.test_sizes, self.validation_sizes = (
            np.array([len(index) for index in self._indices[split]], dtype=np.int64) for split in SPLITS
        )
        self._last = (drop_last, skip_single, merge_last)
        self._set_batches()
        self._refuse_clients_without_steps()

    @property
    def augments(self) -> bool:
        """True if training samples are augmented."""
        return self.augment != "none"

    @property
    def tests(self) -> list[str]:
        """Splits that clients are tested on."""
        return ["test"] + (["validation"] if self.validation_sizes.any() else [])

    @property
    def bytes(self) -> int:
        """Size in bytes of the sample and label arrays."""
        return self._x.nbytes + self._y.nbytes

    def to(self, device: torch.device) -> FederatedData:
        """Returns the data on ``device``; arrays already there are shared."""
        if device == self.device:
            return self
        other = copy(self)
        other.device = device
        moved = (self._x, self._y, self._mean, self._std, self._black)
        other._x, other._y, other._mean, other._std, other._black = (t.to(device) for t in moved)
        other._place(self._indices)
        return other

    def _place(self, lists: Mapping[str, Sequence[Tensor]]) -> None:
        """Copies the clients' lists of samples to the device, as views of one tensor for each split."""
        joined = {split: torch.cat(list(own)).to(self.device) for split, own in lists.items()}
        self._indices = {s: list(joined[s].split([len(index) for index in own])) for s, own in lists.items()}
        self._train, self._unions = joined["train"], dict[str, Tensor]()
        sizes = [len(index) for index in lists["train"]]
        self._begin = torch.tensor([0, *sizes[:-1]]).cumsum(0)  # of each client's list, on the host

    def whole(self) -> FederatedData:
        """Returns the data with one batch per epoch, holding the samples of all batches."""
        other = copy(self)
        other._rest = self._full * self.batch_size + self._rest
        other._full = np.zeros_like(self._full)
        return other

    def pooled(self) -> FederatedData:
        """Returns the data with the training samples of all clients as those of each client."""
        other = copy(self)
        other._indices = {**self._indices, "train": [self._train] * self.clients}
        other._begin = torch.zeros_like(self._begin)
        other.train_sizes = np.full_like(self.train_sizes, self.train_sizes.sum())
        other._set_batches()
        return other

    def first_samples(self, count: int) -> FederatedData:
        """Returns the data with at most ``count`` samples of each split of a client, in one batch per epoch."""
        other = copy(self)
        other._indices = {split: [index[:count] for index in lists] for split, lists in self._indices.items()}
        other._unions = {}
        other.train_sizes, other.test_sizes, other.validation_sizes = (
            np.minimum(sizes, count) for sizes in (self.train_sizes, self.test_sizes, self.validation_sizes)
        )
        other._full, other._rest = np.zeros_like(self._full), other.train_sizes
        return other

    def steps(self, client: int) -> int:
        """Returns the number of batches in an epoch of the client."""
        return int(self._full[client] + (self._rest[client] > 0))

    def indices(self, split: str, client: int) -> Tensor:
        """Returns the client's samples, as indices of the data set."""
        return self._lists(split)[client]

    def union(self, split: str) -> Tensor:
        """Returns the sorted union of all clients' samples; clients may share test samples."""
        if split not in self._unions:
            self._unions[split] = torch.cat(self._lists(split)).unique()
        return self._unions[split]

    def order(self, client: int, round: int, epoch: int) -> SampleOrder:
        """Returns ``[n]`` training samples in the order of an epoch, a pure function of the seed and the arguments."""
        position, keys = self._visits(client, round, epoch)
        position = to_device(position, self.device)
        keys = None if keys is None else to_device(keys, self.device)
        return SampleOrder(self._indices["train"][client][position], position, keys)

    def _visits(self, client: int, round: int, epoch: int) -> Visits:
        count, keys = int(self.train_sizes[client]), None
        position = torch.arange(count)
        if self.shuffle:
            position = torch.from_numpy(permutation(key(self.seed, "order", client, round, epoch), count))
        if self.augments:
            draws = bits(key(self.seed, "augment", client, round, epoch), count)
            keys = torch.from_numpy((draws >> np.uint64(1)).astype(np.int64))
        return Visits(position, keys)

    def _on_device(self, visits: Visits, clients: list[int], first: Tensor) -> SampleOrder:
        """Returns the samples of visits ``[*steps, clients, b]``; client i's list is at ``first[i]`` in the stack."""
        position = to_device(visits.position + first[:, None], self.device)
        keys = None if visits.keys is None else to_device(visits.keys, self.device)
        shift = to_device(self._begin[clients] - first, self.device)[:, None]
        return SampleOrder(self._train[shift + position], position, keys)

    def take(self, index: Tensor, augment_key: Tensor | None = None) -> Samples:
        """Returns the samples at ``index [*batch]`` as ``x [*batch, ...]`` (int64 for text) and ``y [*batch]``."""
        return Samples(self._take_x(index, augment_key), self._y[index])

    def batches(self, client: int, round: int, epoch: int) -> Iterator[ClientBatch]:
        """Yields the batches of one epoch of a client."""
        for chunk in self.chunks(client, round, epoch):
            yield from map(ClientBatch._make, zip(*(field.unbind() for field in chunk), strict=True))

    def chunks(self, client: int, round: int, epoch: int) -> Iterator[ClientBatch]:
        """Yields :meth:`batches` with several equally large ones at a time, ``x [steps, B, ...]``."""
        order = self.order(client, round, epoch)
        full = int(self._full[client]) * self.batch_size
        yield from self._chunks(order.cut(0, full).fold(-1, self.batch_size))
        if rest := int(self._rest[client]):
            yield from self._chunks(order.cut(full, full + rest).fold(1, rest))

    def stack_order(self, clients: Sequence[int]) -> list[int]:
        """Returns the clients as :meth:`stacked_batches` orders them: most batches first, then larger last batches."""
        return sorted(clients, key=lambda c: (-self._full[c], -self._rest[c], c))

    def stacked_batches(self, clients: Sequence[int], round: int, epoch: int) -> Iterator[list[StackedBatch]]:
        """Yields one epoch of several clients, with the samples and augmentation of :meth:`batches`, without padding.

        Each item holds the batches of one step: those of the clients with a full batch, then one group per size of
        smaller last batches. ``rows`` are positions in :meth:`stack_order`; active clients are a prefix of it.
        """
        ranked = self.stack_order(clients)
        visits = [self._visits(client, round, epoch) for client in ranked]
        full, sizes = self._full[ranked], self.train_sizes[ranked]
        first = torch.from_numpy(sizes.cumsum() - sizes)
        for begin, end in pairwise([*sorted({0, *full.tolist()}), None]):
            extra = self._last_groups(ranked, visits, first, begin)
            if end is None:
                if extra:
                    yield extra
                return
            active = int((full > begin).sum())
            rows = _stack([v.cut(begin * self.batch_size, end * self.batch_size) for v in visits[:active]])
            # [clients, steps, batch] -> [steps, clients, batch]
            steps = rows.map(lambda t: t.view(active, -1, self.batch_size).transpose(0, 1).contiguous())  # noqa: B023
            for chunk in self._chunks(self._on_device(steps, ranked[:active], first[:active])):
                for fields in zip(*(field.unbind() for field in chunk), strict=True):
                    yield [StackedBatch(slice(0, active), *fields), *extra]
                    extra = []

    def evaluation(
        self, split: str, client: int | None = None, batch_size: int = EVALUATION_BATCH
    ) -> Iterator[Samples]:
        """Yields the samples of a client, or of all clients (see :meth:`union`), in order, without augmentation."""
        samples = self.union(split) if client is None else self.indices(split, client)
        for index in samples.split(batch_size):
            if len(index):
                yield self.take(index)

    def stacked_evaluation(
        self, split: str, clients: Sequence[int], samples: int = STACKED_EVALUATION
    ) -> Iterator[tuple[int, list[int], Tensor, Tensor]]:
        """Yields the batches of :meth:`evaluation` of several clients, equally large ones stacked to ``samples``.

        Each item holds the number of the batch, rows (positions in ``clients``), ``x [C, b, ...]`` and ``y [C, b]``.
        """
        batches = [self.indices(split, client).split(EVALUATION_BATCH) for client in clients]
        for number in range(max((len(own) for own in batches), default=0)):
            sizes = {row: len(own[number]) for row, own in enumerate(batches) if number < len(own) and len(own[number])}
            for size in dict.fromkeys(sizes.values()):
                rows = [row for row, own_size in sizes.items() if own_size == size]
                most = max(samples // size, 1)
                for first in range(0, len(rows), most):
                    chunk = rows[first : first + most]
                    yield number, chunk, *self.take(torch.stack([batches[row][number] for row in chunk]))

    def _lists(self, split: str) -> list[Tensor]:
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}{did_you_mean(split, SPLITS)}")
        return self._indices[split]

    def _take_x(self, index: Tensor, keys: Tensor | None) -> Tensor:
        if self._modality == "images":
            x = ops.take_normalized(self._x, index, self._mean, self._std, dtype=self.dtype)
            return x if keys is None else augmentation.augment(self.augment, x, keys, self._black)
        return self._x[index].to(torch.int64 if self._modality == "text" else self.dtype)

    def _taken(self, order: SampleOrder) -> tuple[Tensor, Tensor, Tensor]:
        return (*self.take(order.sample, order.keys), order.position)

    def _chunks(self, steps: SampleOrder) -> Iterator[ClientBatch]:
        """Yields the batches of ``[steps, *batch]`` samples in chunks, each taken by one call of an operator."""
        if len(steps.sample) == 0:
            return
        sample_bytes = self._x[0].numel() * self.dtype.itemsize
        size = max(1, chunk_bytes(self.device.type) // (steps.sample[0].numel() * sample_bytes))
        for first in range(0, len(steps.sample), size):
            yield ClientBatch(*self._taken(steps.cut(first, first + size)))

    def _last_groups(self, ranked: list[int], visits: list[Visits], first: Tensor, step: int) -> list[StackedBatch]:
        """Returns the groups of clients whose smaller last batch comes at this step."""
        rows = [row for row, client in enumerate(ranked) if self._full[client] == step and self._rest[client]]
        groups = []
        for size in dict.fromkeys(int(self._rest[ranked[row]]) for row in rows):
            own = [row for row in rows if self._rest[ranked[row]] == size]
            begin = step * self.batch_size
            rest = _stack([visits[row].cut(begin, begin + size) for row in own])
            taken = self._taken(self._on_device(rest, [ranked[row] for row in own], first[own]))
            groups.append(StackedBatch(slice(own[0], own[-1] + 1), *taken))
        return groups

    def _set_batches(self) -> None:
        """Counts the full batches of each client, and the samples of its last batch."""
        drop_last, skip_single, merge_last = self._last
        self._full, self._rest = np.divmod(self.train_sizes, self.batch_size)
        merged = (self._rest > 0) & (self._rest <= merge_last) & (self._full > 0)
        self._full, self._rest = self._full - merged, self._rest + merged * self.batch_size
        self._rest[(self._rest < self.batch_size * drop_last) | (self._rest <= int(skip_single))] = 0

    def _refuse_clients_without_steps(self) -> None:
        for client, size in enumerate(self.train_sizes.tolist()):
            if size == 0:
                raise DataError(f"client {client} has no training samples; take fewer clients, or another seed")
            if self.steps(client) == 0:
                raise DataError(
                    f"client {client} has {size} training samples: drop_last or skip_single leaves no batch "
                    f"(batch size {self.batch_size}); take a smaller batch size, fewer clients, or keep the last batch"
                )


def _check_options(dataset: Dataset, batch_size: int, skip_single: bool, augment: str) -> None:
    if batch_size < 1 or (skip_single and batch_size == 1):
        raise ValueError(f"batch_size must be at least {1 + skip_single}, not {batch_size}")
    if augment not in augmentation.AUGMENTATIONS:
        hint = did_you_mean(augment, augmentation.AUGMENTATIONS)
        raise ValueError(f"augment must be one of {', '.join(augmentation.AUGMENTATIONS)}, not {augment!r}{hint}")
    if augment != "none" and dataset.modality != "images":
        raise ValueError(f"augment={augment!r} is for images, but {dataset.name} is {dataset.modality}")


def _tensor(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        # Memory-mapped files are opened for reading only, and nothing here writes.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))
