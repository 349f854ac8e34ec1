"""Where things live on this machine: one place to look, environment variables to move it."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Things that can be made again: ``$PFL_FAST_CACHE``, else the user's cache folder."""
    return _folder("PFL_FAST_CACHE", "XDG_CACHE_HOME", ".cache")


def data_folder() -> Path:
    """Data sets: ``$PFL_FAST_DATA``, else the user's data folder."""
    return _folder("PFL_FAST_DATA", "XDG_DATA_HOME", ".local/share")


def _folder(ours: str, xdg: str, fallback: str) -> Path:
    if os.environ.get(ours):
        return Path(os.environ[ours]).expanduser()
    return Path(os.environ.get(xdg) or Path.home() / fallback) / "pfl-fast"
