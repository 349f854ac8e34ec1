"""The idx format of MNIST and Fashion-MNIST: four files, gzipped or not."""

from __future__ import annotations

import gzip
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data import bounded
from pfl_fast.data.sources.raw import ImageFile, Raw, Source, from_image_files
from pfl_fast.errors import damaged

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def find(folder: Path) -> tuple[Path, ...]:
    """Returns the four files, if all are in the folder."""
    found = [next((p for p in (folder / f"{name}.gz", folder / name) if p.is_file()), None) for name in FILES]
    return tuple(path for path in found if path) if all(found) else ()


def source(classes: tuple[str, ...], belongs: Callable[[Path], bool]) -> Source:
    """Returns the source of one data set of this format.

    Args:
        classes: names of the labels.
        belongs: returns whether the idx files in a folder belong to this data set; all data sets use the same names.
    """

    def read(files: tuple[Path, ...], size: int) -> Raw:
        return from_image_files(image_files(files), size, 1, classes)

    return Source(f"{FILES[0]}.gz and the other three idx files", lambda f: find(f) if belongs(f) else (), read)


def image_files(files: tuple[Path, ...], domain: int = 0) -> list[ImageFile]:
    """Reads training and test part from the four files."""
    train_x, train_y, test_x, test_y = (read_idx(file) for file in files)
    return [
        ImageFile(str(files[0]), train_x, train_y, False, domain),
        ImageFile(str(files[2]), test_x, test_y, True, domain),
    ]


def read_idx(file: Path) -> NDArray[Any]:
    """Reads an idx file of bytes."""
    data = bounded.read_file(file)
    if file.suffix == ".gz":
        with bounded.reading(file, "gzip file"), gzip.open(io.BytesIO(data)) as opened:
            data = bounded.read(opened, file, len(data))
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise damaged(file, "not an idx file of bytes; empty or corrupt")
    start = 4 + 4 * data[3]
    shape = tuple(np.frombuffer(data, ">u4", data[3], 4).tolist())
    if len(shape) > 3 or len(data) - start != math.prod(shape):
        raise damaged(file, f"{len(data) - start} bytes of data for shape {shape}; truncated")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
