"""Loads data sets by name: from disk, else by download, else a generated stand-in, which is reported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pfl_fast.data import bounded, catalogue, own_files
from pfl_fast.data.cache import (
    BrokenCacheError,
    existing_folder,
    imported_folder,
    imported_names,
    is_writable,
    prepared_folder,
    prepared_home,
    read_cache,
    source_facts,
    write_cache,
)
from pfl_fast.data.catalogue import Found
from pfl_fast.data.dataset import Dataset
from pfl_fast.data.download import OnProgress, fetch, file_checksum
from pfl_fast.data.entry import Download, Entry
from pfl_fast.data.sources.raw import Source
from pfl_fast.errors import DataError, DataRequestError
from pfl_fast.paths import data_folder


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr)


def load(
    name: str,
    *,
    folder: Path | None = None,
    size: int | None = None,
    real_only: bool = False,
    seed: int = 0,
    download: bool = True,
    stand_in_samples: int | None = None,
    log: Callable[[str], None] = _to_stderr,
    progress: Callable[[str], AbstractContextManager[OnProgress | None]] = lambda _label: nullcontext(),
) -> Dataset:
    """Loads a data set of the catalogue or of own files, decoded on first use, or an imported one; memory-mapped.

    Args:
        name: name in ``pfl-fast datasets``, or path of own files, see :mod:`pfl_fast.data.own_files`.
        folder: data folder, possibly read-only; files are in it or in ``<folder>/<name>/``. Default:
            ``$PFL_FAST_DATA``, else the user's data folder.
        size: height and width of images, or number of tokens. Default: size in the catalogue.
        real_only: raises an error instead of generating a stand-in.
        seed: random seed of generated data.
        download: downloads missing files.
        stand_in_samples: number of generated samples.
        log: receives messages for the user, line by line. Default: stderr.
        progress: returns a context that shows the progress of a download, given its name.

    Raises:
        DataError: for an unknown name or broken files, and with ``real_only`` for missing files.
    """
    root = data_folder() if folder is None else existing_folder(folder)
    imported = imported_names(root)
    if name not in catalogue.DATASETS and name in imported:
        return _load_imported(imported_folder(name, root))
    if own_files.is_path(name):
        return own_files.load_own(name, size, log)
    entry = catalogue.entry(name, imported)
    if size is None:
        size = entry.size
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    if not entry.sources:
        return _generated(name, size, stand_in_samples, seed)
    base = entry.base or name
    cache = prepared_folder(base, size, root)
    if cache.is_dir():
        prepared_home()  # refuses a cache that others may write to
    found = catalogue.locate(entry, root)
    opened = _open(name, entry, cache, found, log)
    problem = ""
    if opened is None and (found or download):
        with _lock(prepared_home(), base) as waited:
            if waited:  # the other process may have downloaded files
                found = catalogue.locate(entry, root)
            opened = _open(name, entry, cache, found, lambda _reported: None)
            if opened is None:
                wanted = _to_download(base, entry, root, found) if download else []
                problem = _download(base, entry, wanted, root, log, progress)
                if wanted and not problem:
                    found = catalogue.locate(entry, root)
                if found and not problem:
                    _prepare(name, base, entry, cache, found, size, log)
                    opened = _open(name, entry, cache, found, log)
    if opened is not None:
        dataset, note = opened
        if stand_in_samples is not None:
            raise DataRequestError(
                f"samples={stand_in_samples}: the size of generated data, but {name} was found; per_client and "
                "per_domain limit the training samples of real data"
            )
        if note:
            log(f"{name}: {note}")
        return dataset
    advice = missing(name, entry, root, problem)
    if real_only:
        raise DataError(advice)
    result = _generated(name, size, stand_in_samples, seed)
    log(f"{advice}\nUsing a SYNTHETIC STAND-IN of {len(result)} generated samples instead; results say so.")
    return result


def _prepare(
    name: str, base: str, entry: Entry, cache: Path, found: Found, size: int, log: Callable[[str], None]
) -> None:
    """Decodes the files of a data set into the cache."""
    source, files = found
    names = ", ".join(file.name for file in files[:4])
    log(f"{name}: preparing {names} of {files[0].parent}, once, into {cache}")
    facts = [source_facts(file) for file in files]
    with bounded.reading(files[0], "data set"):
        raw = source.read(files, size)
    if unlike := [file.name for file in files if not _is_published(file, entry)]:
        note = f"{', '.join(unlike)}: not the published file, by its checksum; if you did not change it, fetch it again"
        raw = replace(raw, note="; ".join([note] + [raw.note] * bool(raw.note)))
    checksums = [file_checksum(file) if file.is_file() else None for file in files]
    sources = [fact | {"checksum": checksum} for fact, checksum in zip(facts, checksums, strict=True)]
    write_cache(cache, base, raw, files, sources=sources, reader=source.version)


def _is_published(file: Path, entry: Entry) -> bool:
    """Returns whether a file has the checksum that is published under its name, if there is one."""
    checksum = next((item.checksum for item in entry.downloads if item.file == file.name), None)
    return not checksum or file_checksum(file, checksum.split(":")[0]) == checksum


def _load_imported(folder: Path) -> Dataset:
    try:
        opened = read_cache(folder)
    except BrokenCacheError as error:
        raise DataError(f"{folder}: cannot be used ({error}); remove it and import the data set again") from None
    assert opened is not None
    return opened[0]


def _generated(name: str, size: int, samples: int | None, seed: int) -> Dataset:
    from pfl_fast.data.stand_in import stand_in  # imports torch, which real data can do without

    return stand_in(name, size, samples, seed)


def missing(name: str, entry: Entry, root: Path, problem: str = "") -> str:
    """Returns instructions for placing the files of a data set."""
    target = root / (entry.base or name)
    lines = [f"{name}: not found in {root}{f' ({problem})' if problem else ''}"]
    if entry.by_hand:
        lines.append(f"{entry.by_hand}, into {target}")
    else:
        lines.append(f"run 'pfl-fast data get {name}', or place into {target}:")
        lines += [f"  {d.urls[0]} ({d.checksum or 'no published checksum'})" for d in entry.downloads]
    lines += [f"accepted: {source.layout}" for source in entry.sources]
    return "\n  ".join(lines)


@contextmanager
def _lock(folder: Path, base: str) -> Iterator[bool]:
    """Locks a data set in all sizes, which share their downloads; yields whether another process held the lock."""
    lock = FileLock(folder / f"{base}.lock")
    try:
        lock.acquire(blocking=False)
        waited = False
    except Timeout:
        lock.acquire()
        waited = True
    try:
        yield waited
    finally:
        lock.release()


def _to_download(base: str, entry: Entry, root: Path, found: Found | None) -> list[Download]:
    """Returns the missing downloads: none if the user placed all files, the rest if a download was interrupted.

    After an interrupted download, all files found are downloads; unpacked folders and other archives are the user's.
    """
    absent = [item for item in entry.downloads if not (root / base / item.file).is_file()]
    downloads = {root / base / item.file for item in entry.downloads}
    interrupted = not entry.by_hand and found is not None and absent and downloads.issuperset(found[1])
    return absent if interrupted or not found else []


def _download(
    base: str,
    entry: Entry,
    wanted: list[Download],
    root: Path,
    log: Callable[[str], None],
    progress: Callable[[str], AbstractContextManager[OnProgress | None]],
) -> str:
    """Downloads files; returns the reason if that is not possible."""
    if not wanted:
        return ""
    if entry.by_hand:
        return "it cannot be fetched automatically"
    if not is_writable(root):
        return "the folder is read-only"
    for item in wanted:
        log(f"{base}: downloading {item.file} from {item.urls[0]}")
        try:
            with progress(item.file) as shown:
                fetch(
                    item.urls,
                    root / base / item.file,
                    checksum=item.checksum,
                    limit=item.limit,
                    progress=shown,
                )
        except DataError as error:
            return str(error)
    return ""


def _open(
    name: str, entry: Entry, cache: Path, found: Found | None, log: Callable[[str], None]
) -> tuple[Dataset, str] | None:
    """Returns the decoded data set and its note; None if it is missing, damaged, or made from other files."""
    try:
        opened = read_cache(cache)
    except BrokenCacheError as error:
        log(f"{cache}: cannot be used ({error}); it will be prepared again")
        return None
    if opened is None:
        return None
    dataset, manifest = opened
    if found and not _made_from(manifest, *found):
        log(f"{cache}: made from other files than {found[1][0]}; it will be prepared again")
        return None
    dataset = replace(dataset, name=name, mean=entry.mean, std=entry.std, pools_test=entry.pools_test)
    if entry.labelling:
        dataset = dataset.relabel(entry.labelling, tuple(manifest["labellings"][entry.labelling]))
    return dataset, manifest["note"]


def _made_from(manifest: dict[str, Any], source: Source, files: tuple[Path, ...]) -> bool:
    facts = [{key: value for key, value in fact.items() if key != "checksum"} for fact in manifest["sources"]]
    return bool(facts == [source_facts(file) for file in files] and manifest.get("reader", 1) == source.version)
