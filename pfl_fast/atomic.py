"""Writes files and folders that are complete or absent, whenever the process ends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yields a temporary path to write to, next to ``target``, and renames it to ``target`` when the block ends.

    The contents are synchronised with the disk before the file is renamed, the new name afterwards. An error in the
    block removes the temporary file and leaves ``target`` unchanged.
    """
    temporary = _temporary(target)
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)  # noqa: PTH105 tests replace os
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        raise
    _sync(target.parent)


def write_text(target: Path, text: str) -> None:
    """Writes a text file through :func:`new_file`."""
    write_bytes(target, text.encode())


def write_bytes(target: Path, data: bytes) -> None:
    """Writes a file through :func:`new_file`."""
    with new_file(target) as temporary:
        _write(temporary, data, os.O_TRUNC)


def append(target: Path, data: bytes, sync: bool = False) -> None:
    """Appends to a file, which is made if it does not exist. After an error, it may hold a part of the data.

    Args:
        target: file to append to.
        data: bytes to append.
        sync: synchronises the file with the disk.
    """
    _write(target, data, os.O_APPEND)
    if sync:
        _sync(target)


@contextmanager
def new_folder(target: Path, replace: bool = False) -> Iterator[Path]:
    """Yields an empty temporary folder next to ``target``, which becomes ``target`` when the block ends.

    An error in the block removes the temporary folder and leaves ``target`` unchanged.

    Args:
        target: folder to make; its parents are made too.
        replace: removes an existing folder; otherwise a folder that is not empty raises OSError.
    """
    temporary = _temporary(target)
    shutil.rmtree(temporary, ignore_errors=True)  # left by a process that was killed
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                _sync(path)
        if replace:
            shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.tmp")


def _write(file: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | mode, 0o666)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
