"""Samples in the dtype of their modality: uint8 images, int32 tokens, float32 features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.errors import DataError

MOST_CHANNELS = 4  # of an image; more in the last dimension, and few in the second: channels come first


def standard_samples(values: Any, name: str) -> NDArray[Any]:
    """Returns samples in the dtype of their modality.

    Images are uint8 ``[N, H, W]`` or ``[N, H, W, C]``, tokens whole numbers ``[N, L]``, features other real numbers
    ``[N, ...]``. Values of memory-mapped files are not read.

    Args:
        values: array or nested list.
        name: beginning of error messages.

    >>> standard_samples([[1, 2, 0]], "x").dtype, standard_samples([[0.5, 1.5]], "x").dtype
    (dtype('int32'), dtype('float32'))
    """
    try:
        x = values if isinstance(values, np.ndarray) else np.asarray(values)
    except ValueError:
        raise DataError(f"{name}: samples have different shapes; expected one shape") from None
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return _images(x, name)
    if x.dtype.kind in "iu" and x.dtype != np.uint8 and x.ndim == 2:
        if x.size and not isinstance(x, np.memmap) and (x.min() < 0 or x.max() >= 2**31):
            raise DataError(f"{name}: tokens from {x.min()} to {x.max()}; expected 0 to 2^31 - 1")
        return x.astype(np.int32, copy=False)
    if x.dtype.kind != "f" or x.ndim < 2:
        raise DataError(
            f"{name}: samples of {x.dtype} with shape {list(x.shape[1:])}; expected uint8 images, rows of int64 "
            "tokens, or floating-point features: convert them, for example by .astype('float32')"
        )
    with np.errstate(over="ignore"):
        result: NDArray[Any] = x.astype(np.float32, copy=False)
    if not isinstance(x, np.memmap) and not np.isfinite(result).all():
        raise DataError(f"{name}: samples have NaN or infinite values; correct them")
    return result


def _images(x: NDArray[Any], name: str) -> NDArray[Any]:
    if x.ndim == 3:
        return x[..., None]
    if x.shape[-1] > MOST_CHANNELS and x.shape[1] <= MOST_CHANNELS:
        raise DataError(
            f"{name}: images of shape {list(x.shape[1:])} have their channels first; expected [H, W, C]: convert them "
            "by numpy.moveaxis(x, 1, -1)"
        )
    return x
