"""NumPy archives in three layouts, read without pickles.

- ``x_train y_train x_test y_test``: one data set, as Keras distributes ``mnist.npz``;
- ``<domain>_x_train <domain>_y_train <domain>_x_test <domain>_y_test``: one group for each domain;
- ``x y domain domains classes``: all samples of several domains; ``domain`` and ``y`` are indices into the names.

Images are uint8 ``[N, H, W]`` or ``[N, H, W, C]``; ``classes`` may hold the names of classes.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data import bounded
from pfl_fast.data.sources.cifar import both_labellings
from pfl_fast.data.sources.names import COARSE_OF_FINE
from pfl_fast.data.sources.raw import ImageFile, Raw, Source, from_image_files
from pfl_fast.errors import DataError


def single(name: str, classes: tuple[str, ...], channels: int) -> Source:
    """Returns the source that reads ``name.npz`` (or ``name_*.npz``) with one data set."""

    def read(files: tuple[Path, ...], size: int) -> Raw:
        arrays = read_npz(files[0])
        raw = from_image_files(_train_and_test(files[0], arrays, ""), size, channels, classes)
        if name != "cifar100":
            return raw
        if len(raw.y) and not 0 <= raw.y.min() <= raw.y.max() < len(classes):
            raise DataError(f"{files[0]}: labels {raw.y.min()} to {raw.y.max()}; expected 0 to {len(classes) - 1}")
        return both_labellings(raw, np.array(COARSE_OF_FINE, np.int64)[raw.y])

    return Source(f"{name}.npz with x_train, y_train, x_test, y_test", _finder(name), read)


def domains(name: str, known: tuple[str, ...], classes: tuple[str, ...]) -> Source:
    """Returns the source that reads ``name.npz`` (or ``name_*.npz``): one group of arrays per domain or for all.

    Args:
        name: beginning of the file name.
        known: all domains of the data set; a file may hold some of them.
        classes: names of the labels, if the file has none.
    """

    def read(files: tuple[Path, ...], size: int) -> Raw:
        arrays = read_npz(files[0])
        if "x" in arrays:
            return _one_group(files[0], arrays, size)
        groups = [key.removesuffix("_x_train") for key in arrays if key.endswith("_x_train")]
        if not groups:
            raise DataError(
                f"{files[0]}: neither x nor <domain>_x_train in it; it has {', '.join(arrays) or 'nothing'}"
            )
        parts = [part for i, group in enumerate(groups) for part in _train_and_test(files[0], arrays, f"{group}_", i)]
        names = tuple(str(c) for c in arrays["classes"]) if "classes" in arrays else classes
        note = "" if len(groups) >= len(known) else f"{files[0].name}: {len(groups)} of {len(known)} domains"
        return from_image_files(parts, size, 3, names, tuple(groups), note=note)

    return Source(f"{name}.npz, one group of arrays per domain or all in one group", _finder(name), read)


def _finder(name: str) -> Callable[[Path], tuple[Path, ...]]:
    def find(folder: Path) -> tuple[Path, ...]:
        named = [folder / f"{name}.npz", *sorted(folder.glob(f"{name}_*.npz"))]
        return tuple([path for path in named if path.is_file()][:1])

    return find


def read_npz(file: Path) -> dict[str, NDArray[Any]]:
    """Reads all arrays of an archive."""
    arrays: dict[str, NDArray[Any]] = {}
    size = file.stat().st_size
    with bounded.reading(file, "npz file of plain arrays"), zipfile.ZipFile(file) as archive:
        bounded.check_claim(file, sum(member.file_size for member in archive.infolist()), size)
        for member in archive.infolist():
            with archive.open(member) as stream:
                name = f"{file}/{member.filename}"
                arrays[member.filename.removesuffix(".npy")] = bounded.read_npy(cast(BinaryIO, stream), name, size)
    return arrays


def _train_and_test(file: Path, arrays: dict[str, NDArray[Any]], prefix: str, domain: int = 0) -> list[ImageFile]:
    if missing := [k for s in ("train", "test") for k in (f"{prefix}x_{s}", f"{prefix}y_{s}") if k not in arrays]:
        raise DataError(f"{file}: no {missing[0]} in it; it has {', '.join(arrays) or 'nothing'}")
    names = [(f"{prefix}x_{split}", f"{prefix}y_{split}") for split in ("train", "test")]
    return [ImageFile(f"{file} ({x})", arrays[x], arrays[y], x.endswith("test"), domain) for x, y in names]


def _one_group(file: Path, arrays: dict[str, NDArray[Any]], size: int) -> Raw:
    if missing := [key for key in ("y", "domain", "domains", "classes") if key not in arrays]:
        raise DataError(f"{file}: no {missing[0]} in it; expected x, y, domain, domains and classes")
    classes, names = (tuple(str(name) for name in arrays[key]) for key in ("classes", "domains"))
    domain = arrays["domain"].reshape(-1)
    if len(domain) != len(arrays["x"]) or not np.isin(domain, range(len(names))).all():
        raise DataError(f"{file}: domain must hold one number from 0 to {len(names) - 1} for each image")
    if arrays["y"].size != len(domain) or not len(domain):
        raise DataError(f"{file}: {len(domain)} images but {arrays['y'].size} labels; export it again")
    if "test" in arrays and len(arrays["test"]) != len(domain):
        raise DataError(f"{file}: test must hold one value for each image")
    test = arrays.get("test", np.zeros(len(domain), np.bool_)).astype(np.bool_)
    parts = [
        ImageFile(str(file), arrays["x"][rows], arrays["y"].reshape(-1)[rows], is_test, i)
        for i in range(len(names))
        for is_test in (False, True)
        if (rows := (domain == i) & (test == is_test)).any()
    ]
    return from_image_files(parts, size, 3, classes, names)
