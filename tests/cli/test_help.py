"""Help pages of all commands."""

import click
import pytest

from pfl_fast.cli import main


def commands(group, words=()):
    for name, command in group.commands.items():
        yield [*words, name]
        if isinstance(command, click.Group):
            yield from commands(command, [*words, name])


@pytest.mark.parametrize("words", list(commands(main)), ids=" ".join)
def test_examples_keep_their_lines(cli, words):
    page = cli(*words, "--help").output
    assert "\\b" not in page
    lines = [line.strip() for line in page.splitlines()]
    assert lines[lines.index("Examples:") + 1].startswith("pfl-fast ")
