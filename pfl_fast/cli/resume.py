"""``pfl-fast resume``: continues an interrupted run, or trains more rounds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pfl_fast import config
from pfl_fast.cli.ranks import on_all_ranks
from pfl_fast.cli.setting_options import (
    SETTINGS,
    GroupedCommand,
    check_trackers,
    debug_option,
    given,
    log_option,
    setting_options,
)
from pfl_fast.errors import raise_config_errors
from pfl_fast.options import convert

CHANGEABLE = [name for name in SETTINGS if name in config.NOT_IN_RESULTS]


class ResumeCommand(GroupedCommand):
    """Explains why a setting that affects results cannot be changed."""

    def remedy(self, name: str) -> str:
        """Returns an explanation for settings of ``train``."""
        return "would change the results of the run; start a new run with pfl-fast train" if name in SETTINGS else ""


@click.command(cls=ResumeCommand)
@click.argument("run", type=click.Path(path_type=Path))
@setting_options(CHANGEABLE, show_defaults=False)
@click.option(
    "--trust", is_flag=True, help="load models and metrics that somebody else's run names as module:attribute"
)
@click.option("--quiet", is_flag=True, help="print one line with the results and nothing else")
@log_option
@debug_option
@on_all_ranks
def resume(run: Path, trust: bool, quiet: bool, trackers: tuple[str, ...], **values: Any) -> None:
    """Continue the run in folder RUN from its newest valid checkpoint.

    Results equal those of an uninterrupted run to the bit. Settings that are not given keep their values; only settings
    that do not affect results can be changed, and rounds can be added.

    \b
    Examples:
      pfl-fast resume runs/fedcp-digits-1
      pfl-fast resume runs/fedcp-digits-1 --rounds 200
      pfl-fast resume runs/fedcp-digits-1 --device cuda --executor batched
    """
    errors: list[str] = []
    changes = convert(config.Settings, given(values), errors)
    raise_config_errors(errors)
    check_trackers(trackers)

    from pfl_fast.cli.messages import as_arguments
    from pfl_fast.cli.run import run_experiment
    from pfl_fast.experiment import Experiment

    run_experiment(
        lambda log: Experiment.resume(run, log=log, trusted=trust, **changes),
        run,
        quiet,
        lambda experiment: as_arguments(
            {n: v for n, v in asdict(experiment.settings).items() if v != SETTINGS[n].default}
        ),
        trackers,
    )
