"""Commands that torchrun starts in several processes: rank 0 prints, and errors end all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import click

from pfl_fast.errors import ConfigError, PflFastError

Arguments = ParamSpec("Arguments")


def several_ranks() -> bool:
    """Returns whether this process is one of several ranks; torch is not imported to find out."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def on_all_ranks(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Makes a command run on all ranks: it fails on all if it fails on one, and rank 0 prints."""

    @wraps(command)
    def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        if not several_ranks():
            return command(*arguments, **named)

        from pfl_fast.engine.ranks import current_ranks

        ranks = current_ranks()
        try:
            with only_first_prints(ranks.rank):
                ranks.together(lambda: command(*arguments, **named))
        except PflFastError as error:
            if error is ranks.exchanged and ranks.rank != ranks.speaker:
                raise click.exceptions.Exit(error.exit_code) from None  # the speaker prints it
            raise
        return None

    return run


@contextmanager
def only_first_prints(rank: int) -> Iterator[None]:
    """Discards what other ranks than 0 print inside the block."""
    if rank == 0:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def refuse_ranks(command: str) -> None:
    """Raises if torchrun started a command that trains its runs one after the other."""
    if several_ranks():
        raise ConfigError(
            f"torchrun: {command} trains each run in one process; start pfl-fast train and resume with torchrun, and "
            "put their folders into one table with pfl-fast compare --runs"
        )


def restarted() -> bool:
    """Returns whether torchrun has started the ranks again after a failure (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
