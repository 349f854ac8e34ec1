"""Samples from files, in the form that an exported model takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_fast.data import bounded
from pfl_fast.data.sources.images import decoded_as
from pfl_fast.errors import ConfigError, DataError


def picture(file: Path, about: dict[str, Any]) -> Tensor:
    """Returns an image file as ``[C, H, W]`` in [0, 1], resized to what the model takes.

    Args:
        file: image file.
        about: description of the model's input.
    """
    if about["kind"] != "images":
        raise ConfigError(f"{file}: the model takes {about['kind']}; give .npy files with one sample per row")
    channels, height, width = about["shape"]
    if channels not in (1, 3):
        raise ConfigError(f"{file}: the model takes images of {channels} channels; give .npy files [n, H, W, C]")
    try:
        data = bounded.read_file(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    return _scaled(torch.from_numpy(np.array(decoded_as(data, str(file), (height, width, channels)))), about)


def rows(file: Path, about: dict[str, Any]) -> Tensor:
    """Returns the samples of a ``.npy`` file: uint8 ``[n, H, W, C]``, whole numbers ``[n, L]``, or features."""
    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file}: not a NumPy array ({error})") from error
    images, shape = about["kind"] == "images", tuple(about["shape"])
    expected = (*shape[1:], shape[0]) if images else shape
    kinds = {"images": "u", "text": "iu", "features": "f"}[about["kind"]]
    if array.shape[1:] != expected or array.dtype.kind not in kinds or (images and array.dtype != np.uint8):
        dtype = {"images": "uint8", "text": "int64", "features": "float32"}[about["kind"]]
        raise ConfigError(
            f"{file}: must be {dtype} [n, {', '.join(map(str, expected))}], got {array.dtype} {list(array.shape)}"
        )
    values = torch.from_numpy(np.ascontiguousarray(array))
    if about["kind"] == "text" and len(values) and not 0 <= int(values.min()) <= int(values.max()) <= about["range"][1]:
        raise ConfigError(f"{file}: tokens must be from 0 to {about['range'][1]}")
    return _scaled(values, about) if images else values.to(getattr(torch, about["dtype"]))


def _scaled(images: Tensor, about: dict[str, Any]) -> Tensor:
    return images.movedim(-1, -3).to(getattr(torch, about["dtype"])) / 255
