"""Errors of the disk while a run writes its folder, as messages with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pfl_fast.errors import PflFastError


class RunFolderError(PflFastError):
    """The folder of a run cannot be used."""


@contextmanager
def disk_errors(file: Path, run: Path) -> Iterator[None]:
    """Turns errors of the disk, while a file of the folder ``run`` is written, into a message with a remedy."""
    try:
        yield
    except OSError as error:
        raise cannot_be_written(file, run, error) from error


def cannot_be_written(file: Path, run: Path, error: OSError) -> RunFolderError:
    """Returns the message about a file that cannot be written, with a remedy."""
    return RunFolderError(
        f"{file}: cannot be written ({error.strerror or error}); free some space, then `pfl-fast resume {run}` "
        "continues from the last checkpoint"
    )
