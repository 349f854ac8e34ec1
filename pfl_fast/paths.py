"""Folders of the user for caches and data sets."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Returns the folder of files that can be made again: ``$PFL_FAST_CACHE``, else the user's cache folder."""
    return _from_environment("PFL_FAST_CACHE") or platformdirs.user_cache_path("pfl-fast", appauthor=False)


def data_folder() -> Path:
    """Returns the folder of data sets: ``$PFL_FAST_DATA``, else the user's data folder."""
    return _from_environment("PFL_FAST_DATA") or platformdirs.user_data_path("pfl-fast", appauthor=False)


def _from_environment(variable: str) -> Path | None:
    return Path(value).expanduser() if (value := os.environ.get(variable)) else None
