"""Batches for all clients from one set of flat arrays: no copies, no workers, one operator call for many samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
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


class Batch(NamedTuple):
    """One client's samples: ``x [B, ...]`` and ``y [B]`` int64."""

    x: Tensor
    y: Tensor


class Group(NamedTuple):
    """Clients that have equally many samples at a step: ``x [C, B, ...]``, ``y [C, B]``, and their places."""

    rows: slice
    x: Tensor
    y: Tensor


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
        self._full, self._rest = np.divmod(self.train_sizes, batch_size)
        self._rest[(self._rest < batch_size * drop_last) | (self._rest <= int(skip_single))] = 0
        self._refuse_clients_without_steps()

    @property
    def train_sizes(self) -> NDArray[np.int64]:
        """``[clients]``, training samples of each."""
        return self._sizes("train")

    @property
    def test_sizes(self) -> NDArray[np.int64]:
        """``[clients]``, test samples of each."""
        return self._sizes("test")

    @property
    def validation_sizes(self) -> NDArray[np.int64]:
        """``[clients]``, validation samples of each."""
        return self._sizes("validation")

    @property
    def bytes(self) -> int:
        """Size of the arrays of samples and labels."""
        return self._x.nbytes + self._y.nbytes

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

    def order(self, client: int, round: int, epoch: int) -> Tensor:
        """``[n]``, the client's training samples in the order of this epoch: a function of the seed and arguments."""
        index = self._indices["train"][client]
        if not self.shuffle:
            return index
        places = permutation(key(self.seed, "order", client, round, epoch), len(index))
        return index[torch.from_numpy(places).to(self.device)]

    def augment_keys(self, client: int, round: int, epoch: int) -> Tensor | None:
        """``[n]``, what decides the augmentation of each sample in :meth:`order`; None without augmentation."""
        if self.augment == "none":
            return None
        draws = bits(key(self.seed, "augment", client, round, epoch), len(self._indices["train"][client]))
        return torch.from_numpy((draws >> np.uint64(1)).astype(np.int64)).to(self.device)

    def take(self, index: Tensor, augment_key: Tensor | None = None) -> Batch:
        """Samples ``[*batch]`` of the data set as ``x [*batch, ...]`` (text int64) and ``y [*batch]``."""
        return Batch(self._take_x(index, augment_key), self._y[index])

    def batches(self, client: int, round: int, epoch: int) -> Iterator[Batch]:
        """One epoch of one client."""
        order, keys = self.order(client, round, epoch), self.augment_keys(client, round, epoch)
        full = int(self._full[client]) * self.batch_size
        index = order[:full].view(-1, self.batch_size)
        for x, y in self._chunks(index, None if keys is None else keys[:full].view(-1, self.batch_size)):
            yield Batch(x, y)
        if rest := int(self._rest[client]):
            last = slice(full, full + rest)
            yield self.take(order[last], None if keys is None else keys[last])

    def stack_order(self, clients: Sequence[int]) -> list[int]:
        """The clients as :meth:`stacked` has them: most batches first, then the larger last batch."""
        return sorted(clients, key=lambda c: (-self.steps(c), -(self._rest[c] or self.batch_size), c))

    def stacked(self, clients: Sequence[int], round: int, epoch: int) -> Iterator[list[Group]]:
        """One epoch of several clients at once, with the samples and augmentation of :meth:`batches`; never padded.

        At every step those still active are the first of :meth:`stack_order`, and a group's ``rows`` are places in it:
        first all with a full batch, then a group for each size of smaller last batches.
        """
        ranked = self.stack_order(clients)
        orders = [self.order(client, round, epoch) for client in ranked]
        keys = [self.augment_keys(client, round, epoch) for client in ranked]
        full = self._full[ranked]
        for begin, end in pairwise([*sorted({0, *full.tolist()}), None]):
            extra = self._last_groups(ranked, orders, keys, begin)
            if end is None:
                if extra:
                    yield extra
                return
            active = int((full > begin).sum())
            for x, y in self._chunks(
                self._blocks(orders[:active], begin, end), self._blocks(keys[:active], begin, end)
            ):
                yield [Group(slice(0, active), x, y), *extra]
                extra = []

    def evaluation(self, split: str, client: int | None = None, batch_size: int = 1000) -> Iterator[Batch]:
        """A client's samples (or all clients', see :meth:`union`) in their order, without augmentation."""
        samples = self.union(split) if client is None else self.indices(split, client)
        for index in samples.split(batch_size):
            if len(index):
                yield self.take(index)

    def _lists(self, split: str) -> list[Tensor]:
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}{did_you_mean(split, SPLITS)}")
        return self._indices[split]

    def _sizes(self, split: str) -> NDArray[np.int64]:
        return np.array([len(index) for index in self._indices[split]], dtype=np.int64)

    def _take_x(self, index: Tensor, keys: Tensor | None) -> Tensor:
        if self._kind == "images":
            x = ops.take_normalized(
                self._x, index, self._mean, self._std, channels_last=self.channels_last, dtype=self.dtype
            )
            return x if keys is None else augmentation.augment(self.augment, x, keys, self._black)
        return self._x[index].to(torch.int64 if self._kind == "text" else self.dtype)

    def _chunks(self, index: Tensor, keys: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """The steps of ``index [steps, *batch]`` one by one, taken many at once."""
        if len(index) == 0:
            return
        step = max(1, CHUNK_BYTES // (index[0].numel() * self._x[0].numel() * self.dtype.itemsize))
        labels = self._y[index].unbind()
        for first in range(0, len(index), step):
            part = slice(first, first + step)
            x = self._take_x(index[part], None if keys is None else keys[part])
            yield from zip(x.unbind(), labels[part], strict=True)

    def _blocks(self, values: Sequence[Tensor | None], begin: int, end: int) -> Any:
        """``[end - begin, clients, batch]`` of each client's full batches."""
        present = [value[begin * self.batch_size : end * self.batch_size] for value in values if value is not None]
        if not present:
            return None
        return torch.stack(present).view(len(present), end - begin, -1).transpose(0, 1).contiguous()

    def _last_groups(
        self, ranked: list[int], orders: list[Tensor], keys: list[Tensor | None], step: int
    ) -> list[Group]:
        """Groups of the clients whose last, smaller batch comes at this step."""
        places = [p for p, client in enumerate(ranked) if self._full[client] == step and self._rest[client]]
        groups = []
        for size in dict.fromkeys(int(self._rest[ranked[place]]) for place in places):
            own = [place for place in places if self._rest[ranked[place]] == size]
            part = slice(step * self.batch_size, step * self.batch_size + size)
            own_keys = [k[part] for place in own if (k := keys[place]) is not None]
            index = torch.stack([orders[place][part] for place in own])
            groups.append(
                Group(slice(own[0], own[-1] + 1), *self.take(index, torch.stack(own_keys) if own_keys else None))
            )
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
