"""Runs an experiment from the command line: banner, progress, summary, and how to continue after an interruption."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NoReturn

import click

from pfl_fast.cli import messages
from pfl_fast.cli.setting_options import as_flags
from pfl_fast.engine.stopping import Interrupted, stop_on_signals
from pfl_fast.experiment import Experiment
from pfl_fast.progress import Bar, Lines, Progress
from pfl_fast.trackers import TRACKERS


def run_experiment(
    create: Callable[[Callable[[str], None]], Experiment],
    folder: Path,
    quiet: bool,
    arguments: Callable[[Experiment], Sequence[str]],
    trackers: Iterable[str] = (),
) -> None:
    """Creates an experiment and trains all its rounds; exits with 128 + signal number if a signal stops it.

    Args:
        create: function that returns the experiment; takes the function that prints the experiment's messages.
        folder: folder of the run.
        quiet: print one line with the results and nothing else.
        arguments: returns the command-line arguments that repeat the run, see :func:`messages.final_summary`.
        trackers: names of trackers that receive settings and results.
    """
    begin = monotonic()
    try:
        experiment = create((lambda _message: None) if quiet else lambda message: click.echo(as_flags(message)))
    except KeyboardInterrupt:
        click.echo("Interrupted before the first round.", err=True)
        sys.exit(128 + signal.SIGINT)
    warn = partial(click.echo, err=True)
    if experiment.ranks.rank == 0:
        experiment.listeners += [TRACKERS[name](folder, warn) for name in dict.fromkeys(trackers)]
    try:
        # Around the whole loop: signals that arrive between two rounds must stop the run too.
        with stop_on_signals(experiment.round.executor.stop):
            train(experiment, folder, quiet)
        if experiment.ranks.rank:
            return
        if quiet:
            click.echo(messages.one_line_summary(experiment, folder))
        else:
            click.echo("\n" + messages.final_summary(experiment, folder, monotonic() - begin, arguments(experiment)))
    except Interrupted as interruption:
        exit_interrupted(experiment, folder, interruption.signal)
    finally:
        experiment.close()


def train(experiment: Experiment, folder: Path, quiet: bool) -> None:
    """Trains the remaining rounds and shows progress unless ``quiet``."""
    if quiet:
        experiment.run()
        return
    click.echo(messages.banner(experiment, folder) + "\n")
    progress: Progress = Bar() if sys.stdout.isatty() else Lines()
    experiment.listeners.append(progress)
    try:
        experiment.run()
    finally:
        progress.close()


def exit_interrupted(experiment: Experiment, folder: Path, number: int | None) -> NoReturn:
    """Prints how many rounds are saved and how to continue, and exits with 128 + signal number."""
    rounds, received = experiment.round, signal.Signals(number or signal.SIGINT)
    trained = len(rounds.state.unfinished.reports)
    partial_round = f" and {trained} trained clients of round {rounds.state.rounds_done + 1}" if trained else ""
    click.echo(
        f"Interrupted ({received.name}): {rounds.state.rounds_done} of {rounds.last_round} rounds{partial_round} are "
        f"saved in {folder}.\nContinue with: {shlex.join(['pfl-fast', 'resume', str(folder)])}",
        err=True,
    )
    sys.exit(128 + received)
