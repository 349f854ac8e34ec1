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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.sources import idx
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
    parts = [part for group in per_domain.values() for part in group]
    note = (
        ""
        if len(per_domain) == len(DOMAINS)
        else f"{len(per_domain)} of {len(DOMAINS)} domains: " + ", ".join(per_domain)
    )
    return from_image_files(parts, size, 3, DIGITS, tuple(per_domain), note=note)


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
    with file.open("rb") as opened:
        value = load_plain(opened, str(file))
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise DataError(f"{file}: expected a pair of images and labels")
    return np.asarray(value[0]), np.asarray(value[1]).reshape(-1)


def _mat(file: Path, names: tuple[str, ...]) -> list[NDArray[Any]]:
    from scipy.io import loadmat

    try:
        found = loadmat(file, variable_names=names)
    except Exception as error:  # scipy's parser raises errors of many types
        raise damaged(file, f"not a readable .mat file ({error}); truncated or corrupt") from None
    if missing := [name for name in names if name not in found]:
        raise damaged(file, f"no variable {missing[0]} in it; this is another file of that name")
    return [found[name] for name in names]


def _svhn(file: Path) -> Arrays:
    x, y = _mat(file, ("X", "y"))
    return x.transpose(3, 0, 1, 2), y.reshape(-1) % 10


def _train_and_test_mat(file: Path) -> tuple[Arrays, Arrays]:
    if file.name == "syn_number.mat":
        names = ("train_data", "train_label", "test_data", "test_label")
    else:
        names = ("train", "label_train", "test", "label_test")
    train_x, train_y, test_x, test_y = _mat(file, names)
    return (train_x.astype(np.uint8), _from_one_hot(train_y)), (test_x.astype(np.uint8), _from_one_hot(test_y))


def _from_one_hot(labels: NDArray[Any]) -> NDArray[Any]:
    return labels.argmax(1) if labels.ndim == 2 and labels.shape[1] == 10 else labels.reshape(-1)


def _libsvm(file: Path) -> Arrays:
    """Reads USPS: lines ``label index:value ...`` with labels 1 to 10 and 256 values in [-1, 1]."""
    try:
        rows = bz2.decompress(file.read_bytes()).decode().split("\n")
        lines = [line.split() for line in rows if line.strip()]
        values = np.array([[float(v.split(":")[1]) for v in line[1:]] for line in lines]).reshape(-1, 16, 16)
        labels = np.array([int(line[0]) - 1 for line in lines])
    except (OSError, ValueError, IndexError, EOFError) as error:
        raise damaged(file, f"not USPS in LIBSVM's format ({error}); truncated or corrupt") from None
    return ((values + 1) / 2 * 255).round().clip(0, 255).astype(np.uint8), labels


SOURCE = Source(
    "FedBN's digit_dataset (<Domain>/*.pkl), or the original files of all domains in one folder", find, read
)
