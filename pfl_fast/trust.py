"""Code that configuration files name: loaded for runs that this user started, otherwise only if the user trusts it.

A method, model or metric ``module:attribute`` is imported and called. In a folder from somebody else, the module may be
theirs. The folder and the names of code of each run are remembered in the user's cache folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pfl_fast.errors import PflFastError
from pfl_fast.own_objects import is_described
from pfl_fast.paths import UnsafeFolderError, cache_folder, private


class UntrustedCodeError(PflFastError):
    """A configuration file names code, and the user has not said that the code may run."""

    exit_code = 2


def named_code(values: Mapping[str, Any]) -> list[str]:
    """Returns the method, model and metrics of the form ``module:attribute`` or ``file.py:attribute`` among settings.

    >>> named_code({"model": "nets:Small", "metrics": ["macro_f1", "mine:margin"], "dataset": "digits"})
    ['mine:margin', 'nets:Small']
    """
    metrics = values.get("metrics") or ()
    others = [values.get("method"), values.get("model")]
    names = [*others, *(metrics.split(",") if isinstance(metrics, str) else metrics)]
    return sorted(name.strip() for name in names if isinstance(name, str) and ":" in name and not is_described(name))


def remember(folder: Path, values: Mapping[str, Any]) -> None:
    """Remembers the code of a run that the user starts in ``folder``; without a cache folder, does nothing."""
    if names := named_code(values):
        with suppress(OSError, UnsafeFolderError):
            (private(_records()) / _record(folder, names)).touch()


def check(file: Path, values: Mapping[str, Any], trusted: bool) -> None:
    """Raises if a configuration file names code that was not named when this user started the run in its folder.

    Args:
        file: the configuration file.
        values: values that come from the file.
        trusted: True if the user trusts the file.
    """
    names = named_code(values)
    if not names or trusted:
        return
    with suppress(OSError, UnsafeFolderError):
        if (private(_records()) / _record(file.parent, names)).exists():
            return
    raise UntrustedCodeError(
        f"{file} names code, {', '.join(names)}, and no run of yours in that folder did: if you know that the code is "
        "safe to run, add --trust"
    )


def _records() -> Path:
    return cache_folder() / "started"


def _record(folder: Path, names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join([str(folder.resolve()), *names]).encode("utf-8", "surrogateescape")).hexdigest()
