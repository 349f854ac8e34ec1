"""``pfl-fast resume``: goes on with a run that ended early, or for more rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pfl_fast import config
from pfl_fast.cli.setting_options import SETTINGS, GroupedCommand, given, setting_options
from pfl_fast.errors import ConfigError, raise_config_errors
from pfl_fast.options import convert, plain

CHANGEABLE = [name for name in SETTINGS if name in config.NOT_IN_RESULTS]


class ResumeCommand(GroupedCommand):
    """Says why a setting cannot be changed now."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the command line."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            if name in SETTINGS:
                raise click.UsageError(
                    f"{error.option_name} would change what the run computes: start a new one with pfl-fast train", ctx
                ) from None
            raise


@click.command(cls=ResumeCommand)
@click.argument("run", type=click.Path(path_type=Path))
@setting_options(CHANGEABLE)
@click.option("--quiet", is_flag=True, help="print nothing but the outcome, in one line")
def resume(run: Path, quiet: bool, **values: Any) -> None:
    """Go on with the run in folder RUN from its newest good checkpoint, to the same end to the bit.

    Only what does not change results can be changed, and rounds can be added.

    \b
    Examples:
      pfl-fast resume runs/fedcp-digits-1
      pfl-fast resume runs/fedcp-digits-1 --rounds 200
      pfl-fast resume runs/fedcp-digits-1 --device cuda --executor batched
    """
    errors: list[str] = []
    changes = convert(config.Settings, given(values), errors)
    raise_config_errors(errors)
    if not (run / "config.toml").exists():
        raise ConfigError(f"{run}: there is no run in it (no config.toml)")
    before = config.read(run / "config.toml")

    from pfl_fast.cli import pages, running
    from pfl_fast.cli.train import unheard
    from pfl_fast.experiment import Experiment

    running.run(
        lambda: Experiment.resume(run, report=unheard if quiet else click.echo, **changes),
        run,
        quiet,
        pages.as_words(
            {n: v for n, v in {**before, **changes}.items() if n in SETTINGS and v != plain(SETTINGS[n].default)}
        ),
    )
