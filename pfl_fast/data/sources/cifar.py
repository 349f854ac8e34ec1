"""CIFAR-10 and CIFAR-100: the python or binary archive, or its unpacked folder. Pickles are not executed."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data import bounded
from pfl_fast.data.sources.names import CIFAR10, CIFAR100_COARSE, CIFAR100_FINE
from pfl_fast.data.sources.raw import ImageFile, Raw, Source, from_image_files
from pfl_fast.data.unpickle import load_plain
from pfl_fast.errors import DataError, damaged

TEN = {
    "python": (*[f"data_batch_{i}" for i in range(1, 6)], "test_batch"),
    "binary": (*[f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin"),
}
HUNDRED = {"python": ("train", "test"), "binary": ("train.bin", "test.bin")}
FOLDERS = {("10", "python"): "cifar-10-batches-py", ("10", "binary"): "cifar-10-batches-bin"}
PIXELS = 3 * 32 * 32


def source(number: str, form: str) -> Source:
    """Returns the source of CIFAR-``number`` (``"10"`` or ``"100"``) in a ``form`` (``"python"`` or ``"binary"``)."""
    archive = f"cifar-{number}-{form}.tar.gz"
    unpacked = FOLDERS.get((number, form), f"cifar-{number}-{form}")
    members = (TEN if number == "10" else HUNDRED)[form]

    def find(folder: Path) -> tuple[Path, ...]:
        for place in (folder / unpacked, folder):
            if place.name == unpacked and all((place / member).is_file() for member in members):
                return (place,)
        return (folder / archive,) if (folder / archive).is_file() else ()

    def read(files: tuple[Path, ...], size: int) -> Raw:
        contents = _contents(files[0], members)
        batches = [_batch(contents[name], f"{files[0]}/{name}", number, form) for name in members]
        parts = [
            ImageFile(
                f"{files[0]}/{name}", pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), fine, name.startswith("test")
            )
            for name, (pixels, _, fine) in zip(members, batches, strict=True)
        ]
        if number == "10":
            return from_image_files(parts, size, 3, CIFAR10)
        raw = from_image_files(parts, size, 3, CIFAR100_FINE)
        coarse = np.concatenate([coarse for _, coarse, _ in batches]).astype(np.int64)
        if len(coarse) != len(raw.y):
            raise damaged(files[0], f"{len(coarse)} coarse and {len(raw.y)} fine labels; corrupt")
        return both_labellings(raw, coarse)

    return Source(f"{archive}, or unpacked as {unpacked}/", find, read)


def both_labellings(raw: Raw, coarse: NDArray[np.int64]) -> Raw:
    """Adds the superclasses of CIFAR-100 as a second labelling."""
    raw.labels.update(fine=raw.y, coarse=coarse)
    raw.labellings.update(fine=CIFAR100_FINE, coarse=CIFAR100_COARSE)
    return raw


def _contents(path: Path, members: tuple[str, ...]) -> dict[str, bytes]:
    if path.is_dir():
        return {name: bounded.read_file(path / name) for name in members}
    contents: dict[str, bytes] = {}
    size, claimed = path.stat().st_size, 0
    # As a stream: tarfile then never goes back, which it could do for ever in a damaged file.
    with (
        bounded.reading(path, "tar archive"),
        gzip.open(path) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        for member in tar:
            claimed += member.size
            bounded.check_claim(path, claimed, size)
            name = PurePosixPath(member.name).name
            file = tar.extractfile(member) if member.isfile() and name in members else None
            if file is not None:
                contents[name] = bounded.read(cast(bounded.Readable, file), path, size)
    if missing := [name for name in members if name not in contents]:
        raise damaged(path, f"{missing[0]} is not in it; incomplete")
    return contents


def _batch(data: bytes, name: str, number: str, form: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Returns pixels ``[n, 3072]``, superclasses ``[n]`` (CIFAR-100 only) and classes ``[n]``."""
    if form == "binary":
        labels = 1 if number == "10" else 2
        if not data or len(data) % (labels + PIXELS):
            raise damaged(name, f"{len(data)} bytes are not whole images; truncated")
        rows = np.frombuffer(data, np.uint8).reshape(-1, labels + PIXELS)
        return rows[:, labels:], rows[:, 0], rows[:, labels - 1]
    batch = load_plain(data, name)
    fine = "labels" if number == "10" else "fine_labels"
    if not isinstance(batch, dict) or not {"data", fine} <= batch.keys():
        raise DataError(f"{name}: not a batch of CIFAR-{number}; delete it and fetch it again")
    pixels = bounded.plain_array(batch["data"], name, "images")
    if pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise damaged(name, f"data of shape {pixels.shape}; expected [n, {PIXELS}]")
    coarse = bounded.whole_numbers(batch.get("coarse_labels", []), name, "coarse labels")
    return pixels, coarse, bounded.whole_numbers(batch[fine], name, "labels")
