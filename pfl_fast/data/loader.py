"""Batches of arrays by whole batches, with the interface of ``torch.utils.data.DataLoader``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.sampler import RandomSampler, SequentialSampler

from pfl_fast import ops

CHUNK_BYTES = 1 << 20  # batches are cut from a gathered tensor of about this size, which fits the cache
_BY_SAMPLE = ("collate_fn", "batch_sampler", "worker_init_fn", "multiprocessing_context")


class Loader(DataLoader[Any]):
    """A ``DataLoader`` that gathers whole batches of arrays, without worker processes and without a call per sample.

    The order of samples is that of ``DataLoader`` with the same generator, or the same ``torch.manual_seed``. Data sets
    that compute their samples (transforms, files), and arguments that work by sample, run ``DataLoader`` itself.

    Args:
        dataset: a tuple of arrays or tensors ``[n, ...]``, a ``TensorDataset``, or a ``Subset`` of it; or any data set.
        batch_size: number of samples in a batch.
        shuffle: draw a new order in every epoch.
        normalise: ``(mean, std)`` of each channel: the first array is uint8 images ``[n, H, W, C]``, and batches are
            ``[b, C, H, W]`` float32, see :func:`pfl_fast.ops.take_normalized`. The arrays stay uint8 in memory.
        options: further arguments of ``DataLoader``. ``num_workers`` has no effect on arrays; ``pin_memory`` has one if
            there is a GPU.

    >>> loader = Loader((torch.arange(5.0), torch.arange(5)), batch_size=2)
    >>> len(loader), [y.tolist() for _, y in loader]
    (3, [[0, 1], [2, 3], [4]])
    """

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[Any] | Sequence[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        *,
        normalise: tuple[Sequence[float], Sequence[float]] | None = None,
        **options: Any,
    ) -> None:
        if _is_arrays(dataset):
            dataset = TensorDataset(*(torch.as_tensor(column) for column in dataset))  # type: ignore[union-attr]
        columns, subset = _columns(dataset)
        by_sample = batch_size is None or any(options.get(name) is not None for name in _BY_SAMPLE)
        self._tensors = None if by_sample else columns
        self._subset, self._normalise = subset, normalise
        if normalise is not None:
            _check_images(self._tensors, normalise)
        if self._tensors is not None:
            options.update(num_workers=0, prefetch_factor=None, persistent_workers=False)
            options["pin_memory"] = bool(options.get("pin_memory")) and torch.cuda.is_available()
        super().__init__(dataset, batch_size, shuffle, **options)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yields lists with a tensor for each array of the data set."""
        # A sampler of one's own may count on being asked for each batch when it is due.
        own_sampler = type(self.sampler) not in (RandomSampler, SequentialSampler)
        if self._tensors is None or own_sampler:
            return super().__iter__()
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)  # as DataLoader draws, for its workers
        return self._batches(self._tensors)

    def _batches(self, tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        order = torch.tensor(list(self.sampler), dtype=torch.int64)
        size = int(self.batch_size or 1)
        if self.drop_last:
            order = order[: len(order) // size * size]
        if self._subset is not None:
            order = self._subset[order]
        sample_bytes = max(1, tensors[0][:1].numel() * (4 if self._normalise else tensors[0].element_size()))
        if not len(order):
            return
        for chunk in order.split(size * max(1, CHUNK_BYTES // (size * sample_bytes))):
            for batch in zip(*(column.split(size) for column in self._taken(tensors, chunk)), strict=True):
                yield [part.pin_memory() for part in batch] if self.pin_memory else list(batch)

    def _taken(self, tensors: Sequence[Tensor], index: Tensor) -> list[Tensor]:
        taken = [tensor.index_select(0, index) for tensor in tensors[bool(self._normalise) :]]
        if self._normalise is None:
            return taken
        mean, std = (list(values) for values in self._normalise)
        return [ops.take_normalized(tensors[0], index, mean, std), *taken]


def _is_arrays(dataset: object) -> bool:
    return isinstance(dataset, (tuple, list)) and all(isinstance(column, (np.ndarray, Tensor)) for column in dataset)


def _columns(dataset: Any) -> tuple[Sequence[Tensor] | None, Tensor | None]:
    """Returns the tensors of a data set that only indexes them, and the samples that a ``Subset`` takes."""
    if type(dataset) is TensorDataset:
        return (dataset.tensors, None) if all(t.device.type == "cpu" for t in dataset.tensors) else (None, None)
    if type(dataset) is not Subset:
        return None, None
    tensors, inner = _columns(dataset.dataset)
    own = torch.as_tensor(dataset.indices, dtype=torch.int64)
    return tensors, own if inner is None else inner[own]


def _check_images(tensors: Sequence[Tensor] | None, normalise: tuple[Sequence[float], Sequence[float]]) -> None:
    if tensors is None:
        raise TypeError("Loader: normalise is for arrays; normalise in the transform of the data set")
    images = tensors[0]
    if images.dtype != torch.uint8 or images.dim() != 4 or not images.is_contiguous():
        shape = list(images.shape)
        raise ValueError(
            f"Loader: normalise needs contiguous uint8 images [n, H, W, C] first, got {images.dtype} {shape}"
        )
    if any(len(values) != images.shape[3] for values in normalise):
        raise ValueError(f"Loader: normalise must be (mean, std) with a number for each of {images.shape[3]} channels")
