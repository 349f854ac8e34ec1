"""Data sets of the user by path: folders of images, tables, npz files, folders of Hugging Face's ``datasets``.

They are decoded once, as those of the catalogue are, and again when a file changes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from pfl_fast.data import catalogue
from pfl_fast.data.cache import BrokenCacheError, prepared_folder, prepared_home, read_cache, source_facts, write_cache
from pfl_fast.data.dataset import IMPORTED, Dataset
from pfl_fast.data.rows import TABLES
from pfl_fast.data.sources import arrays_npz, class_folders, hugging_face, tables
from pfl_fast.data.sources.raw import Raw
from pfl_fast.errors import DataError, DataRequestError

ACCEPTED = (
    "a folder with one folder of images per class, a .csv, .tsv, .json, .jsonl or .npz file, or a folder of Hugging "
    "Face's datasets"
)
VERSION = 1  # data decoded by another version is decoded again


class Reader(NamedTuple):
    """Reader of a format, and the default height and width of its images (1: no images, or unknown)."""

    read: Callable[[Path, int], Raw]
    size: int


def is_path(name: str) -> bool:
    """Returns whether the name of a data set is a path: with a slash, with the ending of a file, or in the folder.

    >>> is_path("./digits"), is_path("mine.csv"), is_path("mnist")
    (True, True, False)
    """
    if name in catalogue.DATASETS:
        return False
    return "/" in name or name.lower().endswith((*TABLES, ".npz")) or Path(name).exists()


def name_of(dataset: str) -> str:
    """Returns the name of a data set in results and folders: of a path, a name unlike those of the catalogue.

    >>> name_of("mnist"), name_of("data/my photos.csv"), name_of("data/mnist")
    ('mnist', 'my-photos', 'own-mnist')
    """
    return own_name(Path(dataset).expanduser().resolve()) if is_path(dataset) else dataset


def own_name(path: Path) -> str:
    """Returns the name of a data set of the user: that of its file or folder."""
    stem = path.stem if path.suffix.lower() in (*TABLES, ".npz") else path.name
    name = re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "data"
    return f"own-{name}" if name in catalogue.DATASETS else name


def load_own(name: str, size: int | None, log: Callable[[str], None]) -> Dataset:
    """Loads a data set by its path.

    Args:
        name: path of a file or folder.
        size: height and width of images. Default: the shorter side of the first image, at most 64.
        log: receives messages for the user.

    Raises:
        DataError: for files that cannot be used, naming the file and the remedy.
    """
    path = Path(name).expanduser().resolve()
    if not path.exists():
        raise DataRequestError(f"dataset: {name} does not exist; expected {ACCEPTED}")
    reader = _reader(path)
    title, size = own_name(path), size or reader.size
    cache, home = prepared_folder(title, size, path), prepared_home()
    with FileLock(home / f"{cache.name}.lock"):
        found = _open(cache, path)
        if found is None:
            log(f"{title}: reading {path}, once, into {cache}")
            raw = reader.read(path, size)
            facts = {"sources": [source_facts(path)], "linked": _linked(path, raw.files), "reader": VERSION}
            write_cache(cache, title, raw, (path,), source=IMPORTED, **facts)
            found = _open(cache, path)
    if found is None:
        raise DataError(f"{path}: changed while it was read; try again")
    dataset, manifest = found
    if manifest["note"]:
        log(f"{title}: {manifest['note']}")
    return dataset


def _reader(path: Path) -> Reader:
    suffix = path.suffix.lower()
    if path.is_dir():
        if hugging_face.is_hugging_face(path):
            return Reader(hugging_face.read, class_folders.LARGEST)
        if leaf := _leaf_files(path):
            return Reader(lambda folder, size: tables.raw_of_rows(folder, leaf_rows(leaf), size), 1)
        names, _ = class_folders.image_names(path)
        return Reader(class_folders.read, class_folders.default_size(path / names[0]))
    if suffix == ".npz":
        return Reader(arrays_npz.read, 1)
    if suffix in TABLES:
        first = tables.rows_of(path)[0]
        image = next((first[name] for name in tables.FILE if name in first), None)
        return Reader(tables.read, class_folders.default_size(path.parent / str(image)) if image else 1)
    raise DataRequestError(f"dataset: {path} has the ending {suffix or 'of no format'}; expected {ACCEPTED}")


def _leaf_files(folder: Path) -> dict[str, list[Path]]:
    """Returns the files of LEAF in the folders train and test."""
    found = {split: sorted((folder / split).glob("*.json")) for split in ("train", "test")}
    return found if all(found.values()) else {}


def leaf_rows(files: dict[str, list[Path]]) -> list[dict[str, Any]]:
    """Returns one row for each sample of LEAF's files."""
    return [{**row, "split": split} for split, own in files.items() for file in own for row in tables.rows_of(file)]


def _open(cache: Path, path: Path) -> tuple[Dataset, dict[str, Any]] | None:
    """Returns the decoded data set, or None if it is missing, damaged, or made from other files."""
    try:
        found = read_cache(cache)
    except BrokenCacheError:
        return None
    if found is None:
        return None
    dataset, manifest = found
    same = manifest.get("reader") == VERSION and manifest["sources"] == [source_facts(path)]
    return found if same and manifest.get("linked") == _linked(path, dataset.files) else None


def _linked(path: Path, files: tuple[str, ...]) -> str:
    """Returns a hash of sizes and times of the images that a table names; those of a folder are in its listing."""
    if path.is_dir() or not files:
        return ""
    digest = hashlib.sha256()
    for name in files:
        image = path.parent / name
        facts = image.stat() if image.is_file() else None
        digest.update(f"{name} {facts and (facts.st_size, facts.st_mtime_ns)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
