"""Decoded data sets on disk: a folder with one .npy file per array and a manifest, without pickles.

Data sets of the catalogue are decoded into ``prepared/<name>-<size>-<hash of the data folder>`` of the user's cache;
imported ones are kept in ``imported/<name>`` of the data folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast import __version__, atomic
from pfl_fast.data import bounded
from pfl_fast.data.dataset import REAL, Dataset
from pfl_fast.data.sources.raw import Raw
from pfl_fast.errors import DataError, damaged
from pfl_fast.paths import cache_folder, data_folder, private

FORMAT = 1
MANIFEST = "manifest.json"


class BrokenCacheError(Exception):
    """The folder does not hold the data set that its manifest describes."""


def prepared_folder(base: str, size: int, root: Path) -> Path:
    """Returns the folder of a decoded data set whose files are in the data folder ``root``."""
    return cache_folder() / "prepared" / f"{base}-{size}-{_mark(root)}"


def prepared_home() -> Path:
    """Makes and returns the folder of all decoded data sets, in the user's cache."""
    try:
        return private(cache_folder() / "prepared")
    except OSError as error:
        raise DataError(
            f"{cache_folder()} cannot be written to ({error.strerror}); set PFL_FAST_CACHE to a folder that can"
        ) from None


def prepared_folders(base: str, root: Path) -> list[Path]:
    """Returns the existing folders of a decoded data set, one for each size."""
    name = re.compile(rf"{re.escape(base)}-\d+-{_mark(root)}")
    found = (cache_folder() / "prepared").glob(f"*/{MANIFEST}")
    return sorted(file.parent for file in found if name.fullmatch(file.parent.name))


def imported_folder(name: str, folder: Path | None = None) -> Path:
    """Returns the folder of an imported data set."""
    if not name or name != Path(name).name or name.startswith("."):
        raise DataError(f"{name!r} cannot be the name of a data set; use letters, digits, '-' and '_'")
    return (folder or data_folder()) / "imported" / name


def imported_names(folder: Path) -> list[str]:
    """Returns the names of the imported data sets in a data folder."""
    return sorted(file.parent.name for file in (folder / "imported").glob(f"*/{MANIFEST}"))


def existing_folder(folder: Path) -> Path:
    """Returns a data folder that the user names; raises if it does not exist, because its name may be mistyped."""
    if not folder.expanduser().is_dir():
        raise DataError(f"the data folder {folder} does not exist; make it, or correct the path")
    return folder.expanduser()


def is_writable(folder: Path) -> bool:
    """Returns whether the permission bits allow new files in a folder; read-only folders bind root, too."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return existing.is_dir() and bool(existing.stat().st_mode & 0o222) and os.access(existing, os.W_OK)


def refuse_existing(folder: Path) -> None:
    """Raises unless the folder is missing or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} already exists; remove it or choose another name")


def _mark(root: Path) -> str:
    return hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]


def save_dataset(dataset: Dataset, folder: Path) -> None:
    """Writes an imported data set into a new folder."""
    refuse_existing(folder)
    same: Any = {f.name: getattr(dataset, f.name) for f in fields(Raw) if hasattr(dataset, f.name)}
    raw = Raw(shape=dataset.x.shape, dtype=str(dataset.x.dtype), blocks=lambda: iter([dataset.x]), **same)
    facts: dict[str, Any] = {"mean": dataset.mean, "std": dataset.std, "source": dataset.source}
    write_cache(folder, dataset.name, raw, natural=dataset.natural, **facts)


def write_cache(
    folder: Path, name: str, raw: Raw, files: tuple[Path, ...] = (), natural: Any = None, **facts: Any
) -> None:
    """Decodes a data set into ``folder``, which appears when it is complete.

    Samples are written one block at a time with ordinary writes: memory stays at one block, and a full disk raises an
    error, whereas writing through a memory map would kill the process. The caller holds a lock.

    Args:
        folder: folder to write, replaced if it exists.
        name: name of the data set.
        raw: data set to decode.
        files: files of the data set.
        natural: ``(train, test)`` indices of each client of imported data.
        facts: further entries of the manifest; ``sources``: the :func:`source_facts` of ``files`` before reading.

    Raises:
        DataError: naming the file and its defect; nothing is left behind.
    """
    origin = str(files[0]) if files else name
    _check(raw, origin)
    arrays = {"y": raw.y, "test": raw.test, **({} if raw.domain is None else {"domain": raw.domain})}
    arrays |= {f"labels-{key}": labels for key, labels in raw.labels.items()}
    natural = raw.natural if natural is None else natural
    if natural is not None:
        arrays["natural"] = np.concatenate([np.zeros(0, np.int64), *(index for both in natural for index in both)])
        facts["natural"] = [[len(train), len(test)] for train, test in natural]
    manifest = {
        "format": FORMAT,
        "written_by": f"pfl-fast {__version__}",
        "name": name,
        "sources": [],
        "arrays": {
            "x": {"shape": list(raw.shape), "dtype": raw.dtype},
            **{key: {"shape": list(array.shape), "dtype": str(array.dtype)} for key, array in arrays.items()},
        },
        "classes": list(raw.classes),
        "domains": list(raw.domains),
        "labellings": {key: list(names) for key, names in raw.labellings.items()},
        "vocabulary": raw.vocabulary,
        "note": raw.note,
        "client_names": list(raw.client_names),
        "files": list(raw.files),
        **facts,
    }
    try:
        with atomic.new_folder(folder, replace=True) as unfinished:
            _write_samples(unfinished / "x.npy", raw, origin)
            for key, array in arrays.items():
                np.save(unfinished / f"{key}.npy", array, allow_pickle=False)
            (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = np.prod(raw.shape, dtype=np.int64) * np.dtype(raw.dtype).itemsize / 1e9
            raise DataError(
                f"{folder}: the disk is full; {needed:.1f} GB are needed: make room and try again"
            ) from None
        raise DataError(f"{error.filename or folder}: {error.strerror or error}; cannot prepare {name}") from None


def read_cache(folder: Path) -> tuple[Dataset, dict[str, Any]] | None:
    """Returns the data set in a folder (samples memory-mapped) and its manifest, or None without such a folder.

    Raises:
        BrokenCacheError: saying why the folder cannot be used.
    """
    if not folder.is_dir():
        return None
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise BrokenCacheError(f"it has format {manifest['format']}, this version reads {FORMAT}")
        arrays: dict[str, Any] = {key: _read_array(folder, key, facts) for key, facts in manifest["arrays"].items()}
        dataset = _dataset(manifest, arrays)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenCacheError(f"{MANIFEST}: {type(error).__name__}: {error}") from None
    return dataset, manifest


def _read_array(folder: Path, key: str, facts: Any) -> NDArray[Any]:
    dtype, shape = (facts["dtype"], facts["shape"]) if isinstance(facts, dict) else (facts[0], facts[1:])
    # Copy-on-write, because torch wants writable memory: writes do not reach the file.
    try:
        array = bounded.map_npy(folder / f"{key}.npy", "c")
    except Exception as error:  # NumPy parses the header as Python, and raises errors of many types
        raise BrokenCacheError(f"{key}.npy: {error}") from None
    if list(array.shape) != shape or str(array.dtype) != dtype:
        raise BrokenCacheError(f"{key}.npy holds {array.dtype} {list(array.shape)}, expected {dtype} {shape}")
    return array if key == "x" else np.array(array)


def _dataset(manifest: dict[str, Any], arrays: dict[str, Any]) -> Dataset:
    # Earlier imports have label_<name> and describe an array by a list.
    labels = {re.sub("labels?[-_]", "", key): array for key, array in arrays.items() if key.startswith("label")}
    per_sample = [arrays["x"], arrays["test"], *labels.values(), *([arrays["domain"]] if "domain" in arrays else [])]
    if any(len(values) != len(arrays["y"]) for values in per_sample):
        raise BrokenCacheError("its arrays differ in length")
    sizes = manifest.get("natural")
    return Dataset(
        name=manifest["name"],
        x=arrays["x"],
        y=arrays["y"],
        classes=tuple(manifest["classes"]),
        test=arrays["test"],
        mean=tuple(manifest.get("mean", ())),
        std=tuple(manifest.get("std", ())),
        domain=arrays.get("domain"),
        domains=tuple(manifest["domains"]),
        labels=labels,
        vocabulary=manifest["vocabulary"],
        natural=_natural(arrays["natural"], sizes) if sizes else None,
        source=manifest.get("source", REAL),
        client_names=tuple(manifest.get("client_names", ())),
        files=tuple(manifest.get("files", ())),
    )


def _natural(
    flat: NDArray[np.int64], sizes: list[list[int]]
) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]:
    if sum(train + test for train, test in sizes) != len(flat):
        raise BrokenCacheError("its clients' sizes do not fit natural.npy")
    pieces = iter(np.split(flat, np.cumsum(np.ravel(sizes))[:-1]))
    return tuple((next(pieces), next(pieces)) for _ in sizes)


def source_facts(file: Path) -> dict[str, Any]:
    """Returns name, size and time of a source file, which identify it cheaply; of a folder the hash of its listing."""
    if not file.is_dir():
        facts = file.stat()
        return {"file": file.name, "bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns}
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(file):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            facts = path.stat() if path.exists() else path.lstat()  # a link may point nowhere
            line = (os.path.relpath(folder, file), name, facts.st_size, facts.st_mtime_ns)
            digest.update(repr(line).encode("utf-8", "surrogateescape"))
    return {"file": file.name, "listing": f"sha256:{digest.hexdigest()}"}


def _check(raw: Raw, origin: str) -> None:
    if not len(raw.y):
        raise DataError(f"{origin}: no samples in it; delete it and fetch it again")
    for key, labels, classes in (
        ("labels", raw.y, raw.classes),
        *((f"{key} labels", raw.labels[key], classes) for key, classes in raw.labellings.items()),
    ):
        if labels.min() < 0 or labels.max() >= len(classes):
            wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
            raise DataError(
                f"{origin}: {len(wrong)} {key} outside 0 to {len(classes) - 1} (the first is {labels[wrong[0]]}, of "
                f"sample {wrong[0]}); it is mislabelled or another data set: delete it and fetch it again"
            )


def _write_samples(target: Path, raw: Raw, origin: str) -> None:
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
                raise DataError(f"{origin}: NaN or infinite values among samples {done} to {done + len(block) - 1}")
            file.write(np.ascontiguousarray(block, raw.dtype).data)
            done += len(block)
    if done != raw.shape[0]:
        raise damaged(origin, f"{done} samples but {raw.shape[0]} labels; truncated")
