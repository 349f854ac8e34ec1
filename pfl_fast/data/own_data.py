"""Data sets from arrays, tensors and torch's map-style data sets."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_fast.data.dataset import IMPORTED, Dataset
from pfl_fast.errors import DataError
from pfl_fast.own_objects import described

ACCEPTED = (
    "the name or path of a data set, a pfl_fast.Dataset, a pair (x, y) of arrays or tensors, or a map-style data "
    "set whose samples are pairs (x, y), such as torch.utils.data.TensorDataset"
)
HASHED = 1000  # samples, evenly spaced, that enter the hash


def as_dataset(source: object) -> Dataset:
    """Returns an object as :class:`~pfl_fast.data.dataset.Dataset`.

    Labels are whole numbers from 0. Samples of equal shape are uint8 images (arrays ``[H, W]`` or ``[H, W, C]``, PIL
    images, tensors ``[C, H, W]``), which are normalised with mean and standard deviation 0.5; rows of whole numbers
    (tokens, 0 is padding); or floating-point numbers, which become float32.

    >>> as_dataset((np.zeros((4, 3)), np.array([0, 1, 2, 1]))).input_shape
    (3,)
    """
    if isinstance(source, Dataset):
        return source
    x, y = _columns(source)
    if not len(y):
        raise DataError("dataset: it has no samples; pass at least one for each client")
    return Dataset("own data", x, y, source=IMPORTED)


def content_hash(dataset: Dataset) -> str:
    """Returns a hash of the labels and up to 1,000 samples, 16 hex digits."""
    digest = hashlib.sha256(f"{dataset.x.dtype} {dataset.x.shape}".encode())
    digest.update(np.ascontiguousarray(dataset.y, "<i8").tobytes())
    step = max(1, len(dataset) // HASHED)
    digest.update(np.ascontiguousarray(dataset.x[::step]).tobytes())
    return digest.hexdigest()[:16]


def description(dataset: Dataset) -> str:
    """Returns name, size and hash of a data set."""
    return described(f"{dataset.name}, {len(dataset)} samples, hash {content_hash(dataset)}")


def _columns(source: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns samples and labels as arrays, images with channels last."""
    tensors = getattr(source, "tensors", source)  # torch.utils.data.TensorDataset
    if isinstance(tensors, (tuple, list)) and len(tensors) == 2 and all(map(_is_column, tensors)):
        return _array(tensors[0], batched=True), _array(tensors[1])
    map_style = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    if not map_style or isinstance(source, (str, bytes, dict, np.ndarray, torch.Tensor)):
        raise TypeError(f"dataset: must be {ACCEPTED}; got {type(source).__name__}")
    xs, ys = [], []
    for number in range(len(source)):
        sample = source[number]
        if not isinstance(sample, (tuple, list)) or len(sample) != 2:
            raise TypeError(
                f"dataset: sample {number} must be a pair (x, y), got {type(sample).__name__}; dataset must be "
                f"{ACCEPTED}"
            )
        xs.append(_array(sample[0]))
        ys.append(_array(sample[1]))
    shapes = {x.shape for x in xs}
    if len(shapes) > 1 or {y.size for y in ys} - {1}:
        raise DataError(
            f"dataset: samples have shapes {sorted(shapes)[:3]}; expected one shape, and one label for each sample"
        )
    return (np.stack(xs), np.stack(ys)) if xs else (np.zeros((0, 1)), np.zeros(0, np.int64))


def _is_column(values: object) -> bool:
    return isinstance(values, (np.ndarray, torch.Tensor)) and values.ndim > 0


def _array(values: Any, batched: bool = False) -> NDArray[Any]:
    if not isinstance(values, torch.Tensor):
        return np.asarray(values)
    array: NDArray[Any] = values.detach().cpu().numpy()
    images = values.dtype == torch.uint8 and values.ndim == 3 + batched
    return np.moveaxis(array, 1 if batched else 0, -1) if images else array
