"""Writes files and folders that are complete or absent, whenever the process ends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yields a temporary path to write to, next to ``target``, and renames it to ``target`` when the block ends.

    The contents are synchronised with the disk before the file is renamed. An error in the block removes the temporary
    file and leaves ``target`` unchanged.
    """
    temporary = _temporary(target)
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(target: Path, text: str) -> None:
    """Writes a text file through :func:`new_file`."""
    with new_file(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


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


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
