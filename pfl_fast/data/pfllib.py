"""Imports and exports the files of PFLlib and related papers: one pickled npz file per client and split.

Files are read by :func:`pfl_fast.data.unpickle.load_plain`, which executes no code, and written as pickles, which those
programs expect.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from pfl_fast import atomic
from pfl_fast.data import bounded
from pfl_fast.data.cache import refuse_existing
from pfl_fast.data.dataset import IMPORTED, Dataset
from pfl_fast.data.partition import Partition
from pfl_fast.data.unpickle import load_plain
from pfl_fast.errors import DataError

NAME = re.compile(r"(?:train|test)?(\d+)_?\.npz")  # 3.npz, or train3_.npz in the code of FedCP
EXACT = 1e-6  # maximum rounding error of an 8-bit pixel


def import_pfllib(folder: str | Path, name: str | None = None) -> Dataset:
    """Reads ``train/<i>.npz`` and ``test/<i>.npz`` (or ``train<i>_.npz``), and an optional ``config.json``.

    Images ``[n, C, H, W]`` that are 8-bit pixels scaled to [-1, 1] are converted back to uint8. Rows of whole numbers
    and (tokens, length) pairs become int32 tokens; all other numbers become float32 features, as in PFLlib. Values that
    this would change otherwise are refused: labels that are not whole numbers, tokens beyond int32, NaN.

    Args:
        folder: folder of the data set.
        name: name of the imported data set. Default: name of the folder.

    Returns:
        A data set whose ``natural`` clients are those of the files.
    """
    folder = Path(folder)
    files = {split: _client_files(folder, split) for split in ("train", "test")}
    if lonely := sorted(files["train"].keys() ^ files["test"].keys()):
        raise DataError(f"{folder}: client {lonely[0]} is in only one of train and test; complete the folder")
    pieces = [read_client(files[split][client]) for client in sorted(files["train"]) for split in ("train", "test")]
    ends = np.cumsum([0, *(len(y) for _, y in pieces)])
    lists = [np.arange(begin, end) for begin, end in pairwise(ends.tolist())]
    y = np.concatenate([y for _, y in pieces])
    x, channels = _samples(folder, [x for x, _ in pieces])
    vocabulary = int(x.max(initial=0)) + 1 if x.dtype == np.int32 else 0
    bounded.check_count(folder, vocabulary, x.size, "tokens", free=bounded.FREE_TOKENS)
    test = np.zeros(len(y), dtype=bool)
    test[np.concatenate(lists[1::2])] = True
    return Dataset(
        name or folder.resolve().name, x, y, tuple(map(str, range(_num_classes(folder, y)))), test,
        mean=(0.5,) * channels, std=(0.5,) * channels,
        vocabulary=vocabulary, natural=tuple(zip(lists[::2], lists[1::2], strict=True)), source=IMPORTED,
    )  # fmt: skip


def read_client(file: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Reads the ``(x, y)`` of one client: y is int64, x int32 tokens or float32 numbers."""
    data = bounded.read_file(file)
    with (
        bounded.reading(file, "client's file of PFLlib"),
        zipfile.ZipFile(io.BytesIO(data)) as archive,
        archive.open("data.npy") as member,
    ):
        stream = cast(BinaryIO, member)
        if not bounded.read_npy_header(stream)[2].hasobject:
            raise ValueError("its member 'data' is not a pickled dict")
        content = load_plain(bounded.read(stream, file, len(data)), str(file))
    content = content.item() if isinstance(content, np.ndarray) and content.ndim == 0 else content
    if not isinstance(content, dict) or not {"x", "y"} <= content.keys():
        raise DataError(f"{file}: expected a dict with 'x' and 'y' in its member 'data'; generate it again")
    x, y = _numbers(content["x"], file, len(data)), bounded.whole_numbers(content["y"], file, "labels")
    if y.ndim > 2 or (y.ndim == 2 and y.shape[1] != 1):
        raise DataError(f"{file}: labels of shape {y.shape}, one-hot?; expected [n]: convert them by argmax")
    y = y.reshape(-1)
    if len(x) != len(y) or (len(y) and y.min() < 0):
        raise DataError(f"{file}: {len(x)} samples with {len(y)} labels, or negative labels; generate it again")
    return x, y


def _numbers(x: Any, file: Path, size: int) -> NDArray[Any]:
    if isinstance(x, (list, tuple)) or (isinstance(x, np.ndarray) and x.dtype.hasobject):
        x = _token_rows(x, file, size)
    array = bounded.plain_array(x, file, "x")
    if array.dtype.kind in "iu" and array.ndim == 2:
        if array.size and (array.max() >= 2**31 or array.min() < 0):
            raise DataError(f"{file}: tokens from {array.min()} to {array.max()}; expected 0 to 2^31 - 1: correct them")
        return array.astype(np.int32)
    if not array.ndim:
        raise DataError(f"{file}: x is one number; expected one row for each sample: generate it again")
    if array.dtype.kind in "iu" and array.size and (array.max() > 2**24 or array.min() < -(2**24)):
        raise DataError(f"{file}: x has whole numbers beyond 2^24, which float32 cannot hold: correct them")
    with np.errstate(over="ignore"):
        result = array.astype(np.float32)
    if not np.isfinite(result).all():
        raise DataError(f"{file}: x has NaN, or infinite or very large numbers; correct them")
    return result


def _token_rows(pairs: Any, file: Path, size: int) -> NDArray[Any]:
    """Returns pairs (tokens, length) as rows of tokens, padded with 0; the lengths are not needed."""
    with bounded.reading(file, "list of (tokens, length) pairs in x"):
        rows = [bounded.whole_numbers(tokens, file, "tokens").reshape(-1) for tokens, _length in pairs]
        longest = max(map(len, rows), default=0)
        bounded.check_claim(file, 8 * len(rows) * longest, size, "padded tokens")
        result = np.zeros((len(rows), longest), np.int64)
        for row, tokens in zip(result, rows, strict=True):
            row[: len(tokens)] = tokens
        return result


def _client_files(folder: Path, split: str) -> dict[int, Path]:
    found = (folder / split).glob("*.npz") if (folder / split).is_dir() else ()
    numbered = {int(match[1]): file for file in found if (match := NAME.fullmatch(file.name))}
    if not numbered:
        raise DataError(
            f"{folder / split}: no client's files there, such as 0.npz; give the folder that has train and test"
        )
    return numbered


def _samples(folder: Path, parts: list[NDArray[Any]]) -> tuple[NDArray[Any], int]:
    """Returns all parts as one array, and the number of channels of 8-bit images, else 0."""
    if len({part.dtype for part in parts}) > 1:
        raise DataError(f"{folder}: some clients have tokens and some have numbers")
    if parts[0].dtype == np.int32 and parts[0].ndim == 2:
        longest = max(part.shape[1] for part in parts)
        bounded.check_claim(folder, 4 * longest * sum(map(len, parts)), sum(part.nbytes for part in parts), "tokens")
        return np.concatenate([np.pad(part, ((0, 0), (0, longest - part.shape[1]))) for part in parts]), 0
    if len({part.shape[1:] for part in parts}) > 1:
        raise DataError(f"{folder}: samples of different shapes, {sorted({part.shape[1:] for part in parts})}")
    if parts[0].ndim == 4 and parts[0].dtype == np.float32:
        images = [_as_bytes(part) for part in parts]
        if all(image is not None for image in images):
            return np.concatenate(cast(list[NDArray[np.uint8]], images)), parts[0].shape[1]
    return np.concatenate(parts).astype(np.float32), 0


def _as_bytes(x: NDArray[np.float32]) -> NDArray[np.uint8] | None:
    """Returns ``[n, H, W, C]`` uint8, or None if the conversion is not exact."""
    pixels = np.rint((x * np.float32(0.5) + np.float32(0.5)) * 255)
    exact = np.all((pixels >= 0) & (pixels <= 255) & (np.abs(pixels / np.float32(127.5) - 1 - x) <= EXACT))
    return np.ascontiguousarray(np.moveaxis(pixels.astype(np.uint8), 1, -1)) if exact else None


def _num_classes(folder: Path, y: NDArray[np.int64]) -> int:
    needed = int(y.max(initial=-1)) + 1
    bounded.check_count(folder, needed, len(y), "classes")
    file = folder / "config.json"
    if not file.is_file():
        return needed
    try:
        stated = int(json.loads(bounded.read_file(file)).get("num_classes", needed))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DataError(f"{file}: not readable ({error}); remove it, it is optional") from error
    bounded.check_count(file, stated, len(y), "classes")
    if stated < needed:
        raise DataError(f"{file}: num_classes is {stated}, but there is a label {needed - 1}; correct or remove it")
    return stated


def export_pfllib(dataset: Dataset, partition: Partition, folder: str | Path) -> None:
    """Writes ``train/<i>.npz``, ``test/<i>.npz`` and ``config.json`` in PFLlib's format into a new folder.

    Images are scaled to [-1, 1]; validation samples are left out, because PFLlib has none.
    """
    refuse_existing(Path(folder))
    with atomic.new_folder(Path(folder)) as unfinished:
        for split in ("train", "test"):
            (unfinished / split).mkdir()
            for client, index in enumerate(getattr(partition, split)):
                data: Any = {"x": _pfllib_samples(dataset, index), "y": dataset.y[index]}
                np.savez_compressed(unfinished / split / f"{client}.npz", data=data)
        (unfinished / "config.json").write_text(json.dumps(_config(dataset, partition)))


def _pfllib_samples(dataset: Dataset, index: NDArray[np.int64]) -> NDArray[Any]:
    x = dataset.x[index]
    if dataset.modality == "images":
        scaled = (x.astype(np.float32) / 255 - np.float32(0.5)) / np.float32(0.5)
        return np.ascontiguousarray(np.moveaxis(scaled, -1, 1))
    if dataset.modality == "features":
        return x
    pairs = np.empty(len(x), dtype=object)
    for place, row in enumerate(x):
        pairs[place] = (row.tolist(), int(np.max(np.flatnonzero(row), initial=-1)) + 1)
    return pairs


def _config(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    both = (np.concatenate(lists) for lists in zip(partition.train, partition.test, strict=True))
    counts = [np.unique(dataset.y[index], return_counts=True) for index in both]
    return {
        "num_clients": partition.clients,
        "num_classes": len(dataset.classes),
        "non_iid": partition.rule != "iid",
        "balance": partition.rule == "iid",
        "partition": {"dirichlet": "dir", "pathological": "pat"}.get(partition.rule),
        "Size of samples for labels in clients": [np.stack(pair, 1).tolist() for pair in counts],
        "alpha": partition.settings.get("beta"),
        "batch_size": partition.settings.get("batch_size"),
    }
