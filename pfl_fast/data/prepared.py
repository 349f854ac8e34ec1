"""Decoded data sets on disk: memory-mapped .npy files and a manifest, complete or not there at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast import __version__
from pfl_fast.data.download import file_checksum
from pfl_fast.data.sources.raw import Raw
from pfl_fast.errors import DataError

FORMAT = 1
MANIFEST = "manifest.json"


class BrokenCacheError(Exception):
    """A prepared folder that does not hold what its manifest says; it is to be made again."""


def write_prepared(folder: Path, name: str, raw: Raw, files: tuple[Path, ...]) -> None:
    """Decodes ``raw`` into ``folder``, which appears only when everything in it is complete.

    Samples go to the file piece by piece with ordinary writes: memory stays at one piece, and a full disk is an error,
    whereas writing through a memory map would kill the process. The caller holds a lock.

    Raises:
        DataError: naming the file and what is wrong with it; nothing is left behind.
    """
    check(raw, files)
    half_done = folder.with_name(f".{folder.name}.unfinished")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(half_done, ignore_errors=True)
        half_done.mkdir()
        _write_samples(half_done / "x.npy", raw, files)
        arrays = _small_arrays(raw)
        for key, array in arrays.items():
            with (half_done / f"{key}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                _to_disk(file)
        manifest = {
            "format": FORMAT,
            "written_by": f"pfl-fast {__version__}",
            "name": name,
            "sources": [source_facts(file) | {"checksum": _checksum(file)} for file in files],
            "arrays": {
                "x": {"shape": list(raw.shape), "dtype": raw.dtype},
                **{key: {"shape": list(array.shape), "dtype": str(array.dtype)} for key, array in arrays.items()},
            },
            "classes": list(raw.classes),
            "domains": list(raw.domains),
            "labellings": {key: list(names) for key, names in raw.labellings.items()},
            "vocabulary": raw.vocabulary,
            "note": raw.note,
        }
        with (half_done / MANIFEST).open("wb") as file:
            file.write(json.dumps(manifest, indent=1).encode())
            _to_disk(file)
        shutil.rmtree(folder, ignore_errors=True)
        half_done.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = np.prod(raw.shape, dtype=np.int64) * np.dtype(raw.dtype).itemsize / 1e9
            raise DataError(
                f"{folder}: the disk is full; {needed:.1f} GB are needed: make room and try again"
            ) from None
        raise DataError(f"{error.filename or folder}: {error.strerror or error}; cannot prepare {name}") from None
    finally:
        shutil.rmtree(half_done, ignore_errors=True)


def read_prepared(folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """The manifest and arrays of a prepared folder (samples memory-mapped), or None when there is none.

    Raises:
        BrokenCacheError: saying why it cannot be used.
    """
    if not folder.is_dir():
        return None
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise BrokenCacheError(f"it has format {manifest['format']}, this version writes {FORMAT}")
        arrays = {}
        for key, facts in manifest["arrays"].items():
            # Copy-on-write: torch wants writable memory, and the file stays as it is.
            array = np.load(folder / f"{key}.npy", mmap_mode="c" if key == "x" else None, allow_pickle=False)
            if list(array.shape) != facts["shape"] or str(array.dtype) != facts["dtype"]:
                raise BrokenCacheError(f"{key}.npy is {array.dtype} {array.shape}, the manifest says otherwise")
            arrays[key] = array
        if not {"x", "y", "test"} <= arrays.keys() or not isinstance(manifest["classes"], list):
            raise BrokenCacheError(f"{MANIFEST} is incomplete")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise BrokenCacheError(str(error)) from None
    return manifest, arrays


def source_facts(file: Path) -> dict[str, Any]:
    """What identifies a source file cheaply; of a folder only its name."""
    return {"file": file.name, "bytes": file.stat().st_size if file.is_file() else None}


def check(raw: Raw, files: tuple[Path, ...]) -> None:
    """Refuses data sets without samples, and labels that mean nothing."""
    if not len(raw.y):
        raise DataError(f"{files[0]}: no samples in it; delete it and fetch it again")
    for key, labels, classes in (
        ("labels", raw.y, raw.classes),
        *((f"{key} labels", raw.labels[key], raw.labellings[key]) for key in raw.labels),
    ):
        if labels.min() < 0 or labels.max() >= len(classes):
            wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
            raise DataError(
                f"{files[0]}: {len(wrong)} {key} outside 0 to {len(classes) - 1} (the first is {labels[wrong[0]]}, of "
                f"sample {wrong[0]}); it is mislabelled or another data set: delete it and fetch it again"
            )


def _write_samples(target: Path, raw: Raw, files: tuple[Path, ...]) -> None:
    done = 0
    with target.open("wb") as file:
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(raw.dtype)),
            "fortran_order": False,
            "shape": raw.shape,
        }
        np.lib.format.write_array_header_1_0(file, header)
        for block in raw.blocks():
            if np.issubdtype(block.dtype, np.floating) and not np.isfinite(block).all():
                raise DataError(f"{files[0]}: NaN or infinite values among samples {done} to {done + len(block) - 1}")
            file.write(np.ascontiguousarray(block, raw.dtype).data)
            done += len(block)
        _to_disk(file)
    if done != raw.shape[0]:
        raise DataError(
            f"{files[0]}: {done} samples but {raw.shape[0]} labels; truncated: delete it and fetch it again"
        )


def _small_arrays(raw: Raw) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"y": raw.y, "test": raw.test}
    if raw.domain is not None:
        arrays["domain"] = raw.domain
    return arrays | {f"labels-{key}": labels for key, labels in raw.labels.items()}


def _checksum(file: Path) -> str | None:
    return file_checksum(file) if file.is_file() else None


def _to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
