"""Errors that users can fix: the message names the cause and the remedy, and no traceback is printed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class PflFastError(Exception):
    """Base class. ``pfl-fast`` prints the message and exits with ``exit_code``."""

    exit_code = 1


class DataError(PflFastError):
    """A data set, archive or partition is missing, damaged or impossible."""


class ConfigError(PflFastError):
    """Settings are unknown, malformed or contradictory; the message has one line for each."""

    exit_code = 2


def damaged(file: object, problem: str) -> DataError:
    """Returns an error about a file that must be fetched again."""
    return DataError(f"{file}: {problem}: delete it and fetch it again")


def raise_config_errors(errors: Sequence[str]) -> None:
    """Raises one :class:`ConfigError` with a line for each error; does nothing without errors."""
    if errors:
        raise ConfigError(errors[0] if len(errors) == 1 else "\n  ".join(["these settings cannot be used:", *errors]))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error about an unknown name: the most similar known name, if there is one.

    >>> did_you_mean("fedpc", ["fedcp", "fedavg"])
    "; did you mean 'fedcp'?"
    >>> did_you_mean("zzz", ["fedcp", "fedavg"])
    ''
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
