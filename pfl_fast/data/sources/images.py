"""Decodes images, resizes them and converts between grey and colour."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pfl_fast.data import bounded

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")  # some files of the data sets have the suffix of another format


def decoded(data: bytes, name: str, size: int) -> NDArray[np.uint8]:
    """Decodes an image file to ``[size, size, 3]`` uint8 RGB, with bilinear resizing."""
    return decoded_as(data, name, (size, size, 3))


def decoded_as(data: bytes, name: str, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Decodes an image file to uint8 of a shape ``(H, W, 1 or 3)``, grey or RGB, with bilinear resizing."""
    height, width, channels = shape
    with bounded.reading(name, "image"), Image.open(io.BytesIO(data), formats=FORMATS) as image:
        bounded.check_claim(name, 4 * math.prod(image.size), len(data), "pixels")
        ready = _resized(image.convert("RGB" if channels == 3 else "L"), width, height)
        return np.asarray(ready, dtype=np.uint8).reshape(shape)


def resized(block: NDArray[Any], size: int, channels: int) -> NDArray[np.uint8]:
    """Converts ``[n, H, W]`` or ``[n, H, W, 1 or 3]`` to ``[n, size, size, channels]``.

    >>> resized(np.zeros((2, 5, 5), np.uint8), 7, 3).shape
    (2, 7, 7, 3)
    """
    grey = block.ndim == 3 or block.shape[3] == 1
    plain = block.reshape(block.shape[:3]) if grey else block
    same_size = plain.shape[1:3] == (size, size)
    if not same_size or (not grey and channels == 1):
        mode = "L" if channels == 1 else None
        images = (Image.fromarray(np.ascontiguousarray(image)) for image in plain)
        ready = [np.asarray(_resized(image.convert(mode) if mode else image, size, size)) for image in images]
        plain = np.stack(ready) if ready else np.empty((0, size, size), np.uint8)
    if plain.ndim == 3:
        plain = np.repeat(plain[..., None], channels, axis=3)
    return np.ascontiguousarray(plain, dtype=np.uint8)


def _resized(image: Image.Image, width: int, height: int) -> Image.Image:
    return image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BILINEAR)
