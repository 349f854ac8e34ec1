"""Temporary folders that are removed when their process ends, and otherwise by the next process that needs one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "pfl-fast-"
LOCK = "lock"  # locked while its process lives


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Makes a temporary folder and removes it at the end of the block; removes those of killed processes, too.

    Args:
        parent: folder to make it in; None: the system's folder of temporary files.
    """
    parent = parent or Path(tempfile.gettempdir())
    remove_stale(parent)
    # Others look only for the final name, which it gets when it is locked.
    folder = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
    descriptor = -1
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        folder = folder.rename(parent / folder.name.removeprefix("."))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Removes what killed processes left in a folder that only this process writes to."""
    remove_stale(folder)
    remove([*folder.rglob(".*.tmp"), *folder.rglob(".tmp*")])  # of pfl_fast.atomic, of safetensors


def remove(paths: Iterable[Path]) -> None:
    """Removes files and folders as far as possible."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def remove_stale(parent: Path) -> None:
    """Removes the temporary folders of processes that have ended."""
    for lock in parent.glob(f"{PREFIX}*/{LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # another user's, or just removed
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # in use
            pass
        finally:
            os.close(descriptor)
