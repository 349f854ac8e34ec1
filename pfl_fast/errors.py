"""Errors that users can fix: the message names the cause and the remedy, and no traceback is printed."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Sequence


class PflFastError(Exception):
    """Base class. ``pfl-fast`` prints the message and exits with ``exit_code``."""

    exit_code = 1


class DataError(PflFastError):
    """A data set, archive or partition is missing, damaged or impossible."""


class DataRequestError(DataError):
    """The command asks for data that does not exist or cannot be made that way."""

    exit_code = 2


class ConfigError(PflFastError):
    """Settings are unknown, malformed or contradictory; the message has one line for each."""

    exit_code = 2


REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or ask for a larger quota",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.EROFS: "choose a folder that can be written to",
    errno.EACCES: "choose a folder that can be written to",
    errno.EPERM: "choose a folder that can be written to",
    errno.EIO: "check the disk",
}
NO_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
    "can't start new thread",
    "failed to map segment",  # of a shared library
)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that main memory is exhausted; torch raises RuntimeError or ImportError then."""
    text = str(error).lower()
    exhausted = isinstance(error, (RuntimeError, ImportError)) and any(words in text for words in NO_MEMORY)
    return exhausted or isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def machine_problem(error: BaseException) -> str | None:
    """Returns a message about an error of the disk or of main memory, with the remedy; None for other errors.

    >>> machine_problem(OSError(errno.ENOSPC, "No space left on device", "runs/1"))
    'runs/1: No space left on device; free some space. pfl-fast resume continues an interrupted run'
    >>> machine_problem(ValueError("no")) is None
    True
    """
    if is_out_of_memory(error):
        return (
            "main memory, or its limit (ulimit -v), is exhausted; fewer --workers, a smaller --stack, --batch-size, "
            "--image-size or model need less, and --state disk keeps clients' state in files. pfl-fast resume "
            "continues an interrupted run"
        )
    if not isinstance(error, OSError) or error.errno not in REMEDIES:
        return None
    name = f"{error.filename}: " if error.filename else ""
    return f"{name}{error.strerror}; {REMEDIES[error.errno]}. pfl-fast resume continues an interrupted run"


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
    close = difflib.get_close_matches(name, list(known), n=3)
    letters = sorted(name)  # two letters in the wrong order are the most likely mistake
    best = next((other for other in close if sorted(other) == letters), close[0] if close else None)
    return f"; did you mean {best!r}?" if best else ""
