"""Runs an experiment under the eyes of its user: banner, progress, outcome, and what to do after an interruption."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import NoReturn

import click

from pfl_fast.cli import pages
from pfl_fast.cli.progress import Bar, Lines, Progress
from pfl_fast.engine.local.trainer import Interrupted
from pfl_fast.engine.stopping import stop_on_signals
from pfl_fast.experiment import Experiment


def run(make: Callable[[], Experiment], folder: Path, quiet: bool, command: Sequence[str]) -> None:
    """Makes an experiment and trains it to its end; leaves with 128 + signal when it is stopped before.

    Args:
        make: the experiment, results in ``folder``.
        folder: of the run.
        quiet: print nothing but the outcome, in one line.
        command: words to repeat the run with another method, see :func:`pages.outcome`.
    """
    begin = monotonic()
    try:
        experiment = make()
    except KeyboardInterrupt:
        click.echo("Interrupted before the first round.", err=True)
        sys.exit(128 + signal.SIGINT)
    try:
        # Over the whole loop, so that a signal between two rounds is heard too.
        with stop_on_signals(experiment.server.executor.stop):
            train(experiment, folder, quiet)
    except Interrupted as stopped:
        leave(experiment, folder, stopped.signal)
    finally:
        experiment.close()
    if quiet:
        click.echo(pages.quiet_line(experiment, folder))
    else:
        click.echo("\n" + pages.outcome(experiment, folder, monotonic() - begin, command))


def train(experiment: Experiment, folder: Path, quiet: bool) -> None:
    """All rounds that are left, with a view of how they go."""
    if quiet:
        experiment.run()
        return
    click.echo(pages.banner(experiment, folder) + "\n")
    view: Progress = Bar() if sys.stdout.isatty() else Lines()
    experiment.listeners.append(view)
    try:
        experiment.run()
    finally:
        view.close()


def leave(experiment: Experiment, folder: Path, number: int | None) -> NoReturn:
    """Says what was kept and how to go on."""
    server, asked = experiment.server, signal.Signals(number or signal.SIGINT)
    under_way = len(server.unfinished.reports)
    part = f" and {under_way} trained clients of round {server.rounds_done + 1}" if under_way else ""
    command = shlex.join(["pfl-fast", "resume", str(folder)])
    click.echo(
        f"Interrupted ({asked.name}): {server.rounds_done} of {server.last_round} rounds{part} are kept in "
        f"{folder}.\nGo on with: {command}",
        err=True,
    )
    sys.exit(128 + asked)
