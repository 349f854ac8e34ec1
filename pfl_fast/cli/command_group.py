"""Group of commands whose help shows the whole first sentence of each command."""

from __future__ import annotations

import sys

import click


class CommandGroup(click.Group):
    """Wraps the summaries of its commands, which ``click.Group`` cuts off at the end of the line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Writes the list of commands of ``--help``."""
        with formatter.section("Commands"):
            formatter.write_dl([(n, c.get_short_help_str(limit=sys.maxsize)) for n, c in sorted(self.commands.items())])
