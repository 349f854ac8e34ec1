"""Result of every source: all labels, and samples in blocks that are decoded on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data import bounded
from pfl_fast.data.sources.images import resized
from pfl_fast.errors import DataError

BLOCK = 1024  # samples per block, a few MB
Natural = tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]


@dataclass(frozen=True)
class Raw:
    """A data set as read from its files, not decoded yet.

    Attributes:
        shape: shape of all samples, ``(N, ...)``.
        dtype: dtype of the samples: uint8, int32 or float32.
        blocks: decodes the samples in order, one block ``[n, ...]`` at a time.
        y: ``[N]`` labels.
        classes: names of the labels.
        test: ``[N]`` bool, True for samples of the official test part.
        domain: ``[N]`` domain of each sample, or None.
        domains: names of the domains.
        labels: other labellings ``[N]`` by name.
        labellings: class names of each of ``labels``.
        vocabulary: number of tokens; text only.
        note: message for the user about incomplete or unusual files.
        client: ``[N]`` client of each sample, for data with clients of its own, or None.
        client_names: names of the clients.
        files: file of each sample, relative to the folder of the data set; empty if files hold many samples.
    """

    shape: tuple[int, ...]
    dtype: str
    blocks: Callable[[], Iterator[NDArray[Any]]]
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    test: NDArray[np.bool_]
    domain: NDArray[np.int64] | None = None
    domains: tuple[str, ...] = ()
    labels: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    labellings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    vocabulary: int = 0
    note: str = ""
    client: NDArray[np.int64] | None = None
    client_names: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def natural(self) -> Natural | None:
        """Training and test samples of each client."""
        if self.client is None:
            return None
        order = np.argsort(self.client, kind="stable")
        counts = np.bincount(self.client, minlength=len(self.client_names))
        lists = np.split(order, np.cumsum(counts)[:-1])
        return tuple((own[~self.test[own]], own[self.test[own]]) for own in lists)


@dataclass(frozen=True)
class Source:
    """One accepted layout of a data set.

    Attributes:
        layout: description of the files, for the user.
        find: returns the files of this layout in a folder, by their names; none if the layout is not there.
        read: reads those files at an image size (or number of tokens).
        version: version of ``read``; data sets decoded by another version are decoded again.
    """

    layout: str
    find: Callable[[Path], tuple[Path, ...]]
    read: Callable[[tuple[Path, ...], int], Raw]
    version: int = 1


@dataclass(frozen=True)
class ImageFile:
    """Decoded images of a file: ``x`` is ``[n, H, W]`` or ``[n, H, W, C]`` uint8, ``y`` is ``[n]``."""

    file: str
    x: NDArray[Any]
    y: NDArray[Any]
    test: bool = False
    domain: int = 0


def from_image_files(
    parts: Sequence[ImageFile],
    size: int,
    channels: int,
    classes: tuple[str, ...],
    domains: tuple[str, ...] = (),
    **more: Any,
) -> Raw:
    """Concatenates the images of several files, checked and converted to one size and number of channels."""
    for part in parts:
        check_images(part)
    y = np.concatenate([bounded.whole_numbers(part.y, part.file, "labels").reshape(-1) for part in parts])

    def blocks() -> Iterator[NDArray[Any]]:
        for part in parts:
            for start in range(0, len(part.x), BLOCK):
                yield resized(part.x[start : start + BLOCK], size, channels)

    def each(values: Sequence[int | bool], dtype: type) -> NDArray[Any]:
        return np.repeat(np.array(values, dtype), [len(part.x) for part in parts])

    return Raw(
        shape=(len(y), size, size, channels),
        dtype="uint8",
        blocks=blocks,
        y=y,
        classes=classes,
        test=each([part.test for part in parts], np.bool_),
        domain=each([part.domain for part in parts], np.int64) if domains else None,
        domains=domains,
        **more,
    )


def check_images(part: ImageFile) -> None:
    """Raises if the arrays are not images with one label each."""
    if part.x.dtype != np.uint8:
        broken = np.issubdtype(part.x.dtype, np.floating) and np.isnan(part.x).any()
        what = "hold NaN" if broken else f"are {part.x.dtype}"
        raise DataError(f"{part.file}: the images {what}; expected uint8 values 0 to 255: fetch or export it again")
    if part.x.ndim not in (3, 4) or (part.x.ndim == 4 and part.x.shape[3] not in (1, 3)):
        raise DataError(f"{part.file}: images of shape {part.x.shape}; expected [N, H, W] or [N, H, W, 1 or 3]")
    if len(part.x) != np.size(part.y):
        raise DataError(
            f"{part.file}: {len(part.x)} images but {np.size(part.y)} labels; truncated, or of different parts: "
            "delete it and fetch it again"
        )
