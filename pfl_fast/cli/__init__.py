"""The ``pfl-fast`` command: one file per verb."""

from __future__ import annotations

from typing import Any

import click

from pfl_fast import __version__
from pfl_fast.cli.bench import bench
from pfl_fast.cli.data import data
from pfl_fast.cli.datasets import datasets
from pfl_fast.cli.doctor import doctor
from pfl_fast.cli.methods import methods
from pfl_fast.cli.models import models
from pfl_fast.cli.resume import resume
from pfl_fast.cli.train import train
from pfl_fast.errors import PflFastError

EXAMPLES = """\b
Examples:
  pfl-fast train fedcp --dataset digits --rounds 10    train; offline, under a minute
  pfl-fast resume runs/fedcp-digits-1 --rounds 20      go on with it
  pfl-fast methods fedcp     a method's formulas, options and presets
  pfl-fast models            the models, their features and parameters
  pfl-fast datasets          the data sets known by name, and what of them is on disk
  pfl-fast data get mnist    download and prepare one
  pfl-fast doctor            what is installed, what is missing, what to do about it
  pfl-fast bench --quick     how fast whole rounds are on this machine, from a checkout
"""


class Verbs(click.Group):
    """Shows errors the user can act on as a message, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb."""
        try:
            return super().invoke(ctx)
        except PflFastError as error:
            click.secho(f"Error: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXAMPLES)
@click.version_option(__version__, prog_name="pfl-fast")
def main() -> None:
    """Personalized federated learning: every client in one process, fast, on CPU or GPU."""


main.add_command(bench)
main.add_command(data)
main.add_command(datasets)
main.add_command(doctor)
main.add_command(methods)
main.add_command(models)
main.add_command(resume)
main.add_command(train)
