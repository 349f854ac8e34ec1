"""Folders of the user for caches and data sets."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

from pfl_fast.errors import PflFastError


class UnsafeFolderError(PflFastError):
    """A folder of the user that others could have filled."""


def cache_folder() -> Path:
    """Returns the folder of files that can be made again: ``$PFL_FAST_CACHE``, else the user's cache folder."""
    return _from_environment("PFL_FAST_CACHE") or platformdirs.user_cache_path("pfl-fast", appauthor=False)


def private(folder: Path) -> Path:
    """Makes a folder in the user's cache and returns it; raises if another user owns it or may write to it.

    Libraries in the cache are loaded into the process, so a file of somebody else there could run code.
    """
    root = cache_folder()
    for path in [root, *(parent for parent in reversed(folder.parents) if root in parent.parents), folder]:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = path.stat()
        if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UnsafeFolderError(
                f"the cache folder {path} belongs to user {facts.st_uid} or is writable by others (mode "
                f"{stat.S_IMODE(facts.st_mode):o}): run 'chmod go-w {path}' if everything in it is yours, or set "
                "PFL_FAST_CACHE to another folder"
            )
    return folder


def data_folder() -> Path:
    """Returns the folder of data sets: ``$PFL_FAST_DATA``, else the user's data folder."""
    return _from_environment("PFL_FAST_DATA") or platformdirs.user_data_path("pfl-fast", appauthor=False)


def _from_environment(variable: str) -> Path | None:
    return Path(value).expanduser() if (value := os.environ.get(variable)) else None
