"""The ``pfl-fast`` command: one file per verb."""

from __future__ import annotations

import click

from pfl_fast import __version__
from pfl_fast.cli.doctor import doctor

EXAMPLES = """\b
Examples:
  pfl-fast doctor            what is installed, what is missing, what to do about it
  pfl-fast doctor --json     the same for scripts
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXAMPLES)
@click.version_option(__version__, prog_name="pfl-fast")
def main() -> None:
    """Personalized federated learning: every client in one process, fast, on CPU or GPU."""


main.add_command(doctor)
