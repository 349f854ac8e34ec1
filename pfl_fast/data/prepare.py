"""Data sets by name: found on disk, else downloaded, else generated in their shape, which is said aloud."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout

from pfl_fast.data import catalogue
from pfl_fast.data.catalogue import Found
from pfl_fast.data.dataset import Dataset
from pfl_fast.data.download import Progress, fetch
from pfl_fast.data.entry import Download, Entry
from pfl_fast.data.prepared import MANIFEST, BrokenCacheError, read_prepared, source_facts, write_prepared
from pfl_fast.data.store import imported_folder, load_dataset
from pfl_fast.errors import DataError
from pfl_fast.paths import cache_folder, data_folder


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr)


def _ignore(_message: str) -> None:
    """Drops a message that was reported before."""


def _no_progress(_label: str) -> AbstractContextManager[Progress | None]:
    return nullcontext()


def load(
    name: str,
    *,
    folder: Path | None = None,
    size: int | None = None,
    real_only: bool = False,
    seed: int = 0,
    download: bool = True,
    stand_in_samples: int | None = None,
    report: Callable[[str], None] = _to_stderr,
    progress: Callable[[str], AbstractContextManager[Progress | None]] = _no_progress,
) -> Dataset:
    """A data set of the catalogue, decoded once and memory-mapped from then on, or one that was imported.

    Args:
        name: as ``pfl-fast datasets`` lists it.
        folder: the data folder, or one that holds the files, directly or in ``<folder>/<name>/``; it may be read-only.
            Default: ``$PFL_FAST_DATA``, else the user's data folder.
        size: side of the images, or number of tokens; default as in the catalogue.
        real_only: an error instead of a stand-in.
        seed: of generated data.
        download: whether files that are missing may be fetched.
        stand_in_samples: how many samples to generate.
        report: gets a line for everything the user should know. Default: stderr.
        progress: for each download's name, a context in which its progress is shown.

    Raises:
        DataError: for an unknown name, broken files, and with ``real_only`` for missing ones.
    """
    root = (folder or data_folder()).expanduser()
    if name not in catalogue.DATASETS and (imported_folder(name, root) / MANIFEST).is_file():
        return load_dataset(imported_folder(name, root))
    entry = catalogue.entry(name)
    if size is None:
        size = entry.size
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    if not entry.sources:
        return _generated(name, size, stand_in_samples, seed)
    base = entry.base or name
    cache = prepared_folder(base, size, root)
    found = catalogue.locate(entry, root)
    opened = _open(name, entry, cache, found, report)
    problem = ""
    if opened is None and (found or download):
        with _lock(cache.parent, base) as waited:
            if waited:  # the other process may have downloaded files
                found = catalogue.locate(entry, root)
            opened = _open(name, entry, cache, found, _ignore)
            if opened is None:
                wanted = _to_download(base, entry, root, found) if download else []
                problem = _download(base, entry, wanted, root, report, progress)
                if wanted and not problem:
                    found = catalogue.locate(entry, root)
                if found and not problem:
                    source, files = found
                    report(f"{name}: preparing {', '.join(file.name for file in files[:4])} in {files[0].parent}, once")
                    write_prepared(cache, base, source.read(files, size), files)
                    opened = _open(name, entry, cache, found, report)
    if opened is not None:
        dataset, note = opened
        if note:
            report(f"{name}: {note}")
        return dataset
    advice = missing(name, entry, root, problem)
    if real_only:
        raise DataError(advice)
    result = _generated(name, size, stand_in_samples, seed)
    report(f"{advice}\nUsing a SYNTHETIC STAND-IN of {len(result)} generated samples instead; results say so.")
    return result


def _generated(name: str, size: int, samples: int | None, seed: int) -> Dataset:
    from pfl_fast.data.stand_in import stand_in  # imports torch, which real data can do without

    return stand_in(name, size, samples, seed)


def prepared_folder(base: str, size: int, root: Path) -> Path:
    """Where the decoded form is kept: in the data folder; if that is read-only, in the default data or cache folder."""
    home = _home(root)
    if home is None:
        raise DataError(f"neither {root} nor {data_folder()} can be written to; set PFL_FAST_DATA to a folder that can")
    return home / "prepared" / f"{base}-{size}{_mark(home, root)}"


def prepared_folders(base: str, root: Path) -> list[Path]:
    """The decoded forms that are there, of all sizes."""
    home = _home(root)
    if home is None:
        return []
    name = re.compile(rf"{re.escape(base)}-\d+{_mark(home, root)}")
    return sorted(file.parent for file in home.glob(f"prepared/*/{MANIFEST}") if name.fullmatch(file.parent.name))


def _home(root: Path) -> Path | None:
    return next((home for home in (root, data_folder(), cache_folder()) if _writable(home)), None)


def _mark(home: Path, root: Path) -> str:
    """Tells read-only folders apart, whose decoded forms share a home."""
    return "" if home == root else "-" + hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]


def missing(name: str, entry: Entry, root: Path, problem: str = "") -> str:
    """What to fetch from where, and where to put it."""
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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made ({error.strerror}); set PFL_FAST_DATA to another folder") from None
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


def _writable(folder: Path) -> bool:
    """Permission bits count even for root, who could write anyway: a read-only folder is meant to stay as it is."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return existing.is_dir() and bool(existing.stat().st_mode & 0o222) and os.access(existing, os.W_OK)


def _to_download(base: str, entry: Entry, root: Path, found: Found | None) -> list[Download]:
    """Returns the missing downloads: none if the user placed all files, the rest if a download was interrupted."""
    missing = [item for item in entry.downloads if not (root / base / item.file).is_file()]
    interrupted = 0 < len(missing) < len(entry.downloads) and not entry.by_hand
    return missing if interrupted or not found else []


def _download(
    base: str,
    entry: Entry,
    wanted: list[Download],
    root: Path,
    report: Callable[[str], None],
    progress: Callable[[str], AbstractContextManager[Progress | None]],
) -> str:
    """Downloads files; returns the reason if that is not possible."""
    if not wanted:
        return ""
    if entry.by_hand:
        return "it cannot be fetched automatically"
    if not _writable(root):
        return "the folder is read-only"
    for item in wanted:
        report(f"{base}: downloading {item.file} from {item.urls[0]}")
        try:
            with progress(item.file) as shown:
                fetch(item.urls, root / base / item.file, checksum=item.checksum, progress=shown)
        except DataError as error:
            return str(error)
    return ""


def _open(
    name: str, entry: Entry, cache: Path, found: Found | None, report: Callable[[str], None]
) -> tuple[Dataset, str] | None:
    """The prepared data set and a note on it, if it is there, intact, and made from the files that are there."""
    try:
        opened = read_prepared(cache)
    except BrokenCacheError as error:
        report(f"{cache}: cannot be used ({error}); it will be prepared again")
        return None
    if opened is None:
        return None
    manifest, arrays = opened
    if found and [source_facts(file) for file in found[1]] != [
        {key: fact[key] for key in ("file", "bytes")} for fact in manifest["sources"]
    ]:
        report(f"{cache}: made from other files than {found[1][0]}; it will be prepared again")
        return None
    labels = {key.removeprefix("labels-"): array for key, array in arrays.items() if key.startswith("labels-")}
    dataset = Dataset(
        name=name,
        x=arrays["x"],
        y=arrays["y"],
        classes=tuple(manifest["classes"]),
        test=arrays["test"],
        mean=entry.mean,
        std=entry.std,
        domain=arrays.get("domain"),
        domains=tuple(manifest["domains"]),
        labels=labels,
        vocabulary=manifest["vocabulary"],
        pools_test=entry.pools_test,
    )
    if entry.labelling:
        dataset = dataset.relabel(entry.labelling, tuple(manifest["labellings"][entry.labelling]))
    return dataset, manifest["note"]
