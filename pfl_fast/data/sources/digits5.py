"""Digits-Five: MNIST, SVHN, USPS, SynthDigits and MNIST-M, from one folder.

The first of these layouts is read for each domain:

=============  =========================================================================================================
any            ``<Domain>/train.pkl`` (or ``<Domain>/partitions/train_part<i>.pkl``) and ``<Domain>/test.pkl``: FedBN's
               ``digit_dataset``, domains named MNIST, SVHN, USPS, SynthDigits, MNIST_M; read without executing
MNIST          the four idx files
SVHN           ``train_32x32.mat`` and ``test_32x32.mat``; label 10 means 0
USPS           ``usps.bz2`` and ``usps.t.bz2``, LIBSVM's text format
SynthDigits    ``synth_train_32x32.mat`` and ``synth_test_32x32.mat``, or Digit-Five's ``syn_number.mat``
MNIST-M        Digit-Five's ``mnistm_with_label.mat``
=============  =========================================================================================================
"""

from __future__ import annotations

import bz2
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data import bounded
from pfl_fast.data.sources import idx
from pfl_fast.data.sources.mat import read_mat
from pfl_fast.data.sources.names import DIGITS
from pfl_fast.data.sources.raw import ImageFile, Raw, Source, from_image_files
from pfl_fast.data.unpickle import load_plain
from pfl_fast.errors import DataError, damaged

DOMAINS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST_M")
Arrays = tuple[NDArray[Any], NDArray[Any]]


def find(folder: Path) -> tuple[Path, ...]:
    """Returns the files of all domains found, if there are at least two."""
    found = [files for domain in DOMAINS if (files := _files(folder, domain))]
    return tuple(file for files in found for file in files) if len(found) > 1 else ()


def read(files: tuple[Path, ...], size: int) -> Raw:
    """Reads all domains, each with its own official test part."""
    per_domain: dict[str, list[ImageFile]] = {}
    for domain in DOMAINS:
        mine = tuple(file for file in files if _domain_of(file) == domain)
        if mine:
            per_domain[domain] = _parts(domain, mine, len(per_domain))
    scaled: list[str] = []
    parts = [_as_bytes(part, scaled) for group in per_domain.values() for part in group]
    notes = [f"{len(per_domain)} of {len(DOMAINS)} domains: {', '.join(per_domain)}"] * (len(per_domain) < len(DOMAINS))
    notes += [f"values from 0 to 1 were multiplied by 255 in {', '.join(scaled)}"] if scaled else []
    return from_image_files(parts, size, 3, DIGITS, tuple(per_domain), note="; ".join(notes))


_NAMES: dict[str, list[tuple[str, ...]]] = {
    "MNIST": [],
    "SVHN": [("train_32x32.mat", "test_32x32.mat")],
    "USPS": [("usps.bz2", "usps.t.bz2")],
    "SynthDigits": [("synth_train_32x32.mat", "synth_test_32x32.mat"), ("syn_number.mat",)],
    "MNIST_M": [("mnistm_with_label.mat",)],
}


def _files(folder: Path, domain: str) -> tuple[Path, ...]:
    pickles = folder / domain
    if (pickles / "test.pkl").is_file():
        whole = [pickles / "train.pkl"]
        parts = sorted(pickles.glob("partitions/train_part*.pkl"), key=lambda p: (len(p.name), p.name))
        return (*([path for path in whole if path.is_file()] or parts), pickles / "test.pkl")
    for names in _NAMES[domain]:
        if all((folder / name).is_file() for name in names):
            return tuple(folder / name for name in names)
    return idx.find(folder) if domain == "MNIST" else ()


def _domain_of(file: Path) -> str:
    if file.suffix == ".pkl":
        return next(part for part in reversed(file.parts) if part in DOMAINS)
    return next((d for d, options in _NAMES.items() if any(file.name in names for names in options)), "MNIST")


def _parts(domain: str, files: tuple[Path, ...], number: int) -> list[ImageFile]:
    if files[0].suffix == ".pkl":
        return [ImageFile(str(f), *_pickled(f), f.name == "test.pkl", number) for f in files]
    if domain == "MNIST":
        return idx.image_files(files, number)
    if len(files) == 1:
        (train, test), file = _train_and_test_mat(files[0]), str(files[0])
        return [ImageFile(file, *train, False, number), ImageFile(file, *test, True, number)]
    reader: Callable[[Path], Arrays] = _libsvm if domain == "USPS" else _svhn
    return [ImageFile(str(f), *reader(f), i == 1, number) for i, f in enumerate(files)]


def _pickled(file: Path) -> Arrays:
    value = load_plain(bounded.read_file(file), str(file))
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise DataError(f"{file}: expected a pair of images and labels")
    return bounded.plain_array(value[0], file, "images"), bounded.plain_array(value[1], file, "labels").reshape(-1)


def _as_bytes(part: ImageFile, scaled: list[str]) -> ImageFile:
    """Converts images in [0, 1], or of whole numbers from 0 to 255, to uint8; the former are named in ``scaled``."""
    x = part.x
    if x.dtype == np.uint8 or not x.size:
        return part
    low, high = x.min(), x.max()
    if x.dtype.kind == "f" and low >= 0 and high <= 1:
        scaled.append(part.file)
        return replace(part, x=(x * 255).round().astype(np.uint8))
    if low >= 0 and high <= 255 and np.all(np.mod(x, 1) == 0):
        return replace(part, x=x.astype(np.uint8))
    raise DataError(
        f"{part.file}: images with values {low} to {high}; expected whole numbers from 0 to 255, or numbers from 0 to "
        "1, which are multiplied by 255: convert them"
    )


def _svhn(file: Path) -> Arrays:
    x, y = read_mat(file, ("X", "y"))
    if x.ndim != 4:
        raise damaged(file, f"images of shape {x.shape}; expected [H, W, C, N]")
    return x.transpose(3, 0, 1, 2), bounded.whole_numbers(y, file, "labels").reshape(-1) % 10


def _train_and_test_mat(file: Path) -> tuple[Arrays, Arrays]:
    if file.name == "syn_number.mat":
        names = ("train_data", "train_label", "test_data", "test_label")
    else:
        names = ("train", "label_train", "test", "label_test")
    train_x, train_y, test_x, test_y = read_mat(file, names)
    return (train_x, _from_one_hot(train_y, file)), (test_x, _from_one_hot(test_y, file))


def _from_one_hot(labels: NDArray[Any], file: Path) -> NDArray[Any]:
    if labels.ndim != 2 or labels.shape[1] != len(DIGITS):
        return labels.reshape(-1)
    if not np.all((labels == 0) | (labels == 1)) or not np.all(labels.sum(1) == 1):
        raise damaged(file, "rows of ten labels that are not one-hot")
    return np.asarray(labels.argmax(1))


def _libsvm(file: Path) -> Arrays:
    """Reads USPS: lines ``label index:value ...``, labels 1 to 10, indices 1 to 256 that ascend, values in [-1, 1].

    The value of an index that is not in a line is 0.
    """
    data = bounded.read_file(file)
    images, labels = [], []
    with bounded.reading(file, "file of USPS in LIBSVM's format"):
        with bz2.open(io.BytesIO(data)) as opened:
            text = bounded.read(opened, file, len(data)).decode()
        for number, line in enumerate(text.splitlines(), 1):
            label, *entries = line.split() or [""]
            if not label:
                continue
            pairs = [entry.split(":") for entry in entries]
            index, values = np.array([int(pair[0]) for pair in pairs]), np.array([float(pair[1]) for pair in pairs])
            if (
                not pairs
                or index[0] < 1
                or index[-1] > 256
                or (np.diff(index) < 1).any()
                or not (abs(values) <= 1).all()
            ):
                raise ValueError(f"line {number}: indices or values out of range")
            image = np.zeros(256)
            image[index - 1] = values
            images.append(((image + 1) / 2 * 255).round().astype(np.uint8).reshape(16, 16))
            labels.append(int(label) - 1)
        return np.stack(images), np.array(labels, np.int64)


SOURCE = Source(
    "FedBN's digit_dataset (<Domain>/*.pkl), or the original files of all domains in one folder", find, read, version=2
)
