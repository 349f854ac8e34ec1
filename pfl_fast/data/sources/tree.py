"""Files in folders and zip archives under one naming scheme; archives are not unpacked to disk."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data import bounded
from pfl_fast.data.sources.images import decoded
from pfl_fast.errors import damaged

BATCH = 256  # images decoded together
Item = TypeVar("Item")


class Tree:
    """All files of some folders and zip archives; ``names`` holds their paths with forward slashes."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._read: dict[str, Callable[[], bytes]] = {}
        self._where: dict[str, Path] = {}
        for root in roots:
            if root.is_dir():
                self._add_folder(root)
            else:
                self._add_archive(root)
        self.names = sorted(self._read)

    def _add_folder(self, root: Path) -> None:
        for folder, folders, files in os.walk(root):
            folders.sort()
            for file in files:
                path = Path(folder, file)
                name = path.relative_to(root.parent).as_posix()
                self._read[name], self._where[name] = partial(bounded.read_file, path), root.parent

    def _add_archive(self, file: Path) -> None:
        archive, members = bounded.open_zip(file, file, file.stat().st_size)
        for member in members:
            self._read[member.filename] = partial(_read_member, archive, member, file)
            self._where[member.filename] = file

    def read(self, name: str) -> bytes:
        """Reads a file."""
        if name not in self._read:
            raise damaged(self.path(name), "missing; the data set is incomplete")
        return self._read[name]()

    def path(self, name: str) -> Path:
        """Returns the path of a file, for messages."""
        return self._where.get(name, Path()) / name

    def text(self, name: str) -> list[str]:
        """Reads the lines of a text file."""
        return self.read(name).decode("utf-8", "replace").splitlines()

    def images(self, names: Sequence[str], size: int) -> Iterator[NDArray[Any]]:
        """Decodes images on all cores; yields blocks ``[n, size, size, 3]`` uint8."""
        return _decode(names, lambda name: decoded(self.read(name), str(self.path(name)), size))


def decode_files(files: Sequence[Path], size: int) -> Iterator[NDArray[Any]]:
    """Decodes image files on all cores; yields blocks ``[n, size, size, 3]`` uint8."""
    return _decode(files, lambda file: decoded(bounded.read_file(file), str(file), size))


def _decode(items: Sequence[Item], decode: Callable[[Item], NDArray[Any]]) -> Iterator[NDArray[Any]]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(items), BATCH):
            yield np.stack(list(pool.map(decode, items[start : start + BATCH])))


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path) -> bytes:
    with bounded.reading(f"{file}/{member.filename}", "member of the archive"):
        return archive.read(member)
