"""Help pages of all commands."""

import inspect

import click
import pytest

from pfl_fast.cli import main


def commands(group, words=()):
    for name, command in group.commands.items():
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


COMMANDS = dict(commands(main))


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_every_page_has_examples_on_lines_of_their_own(cli, words):
    page = cli(*words, "--help").output
    assert "\\b" not in page
    lines = [line.strip() for line in page.splitlines()]
    assert lines[lines.index("Examples:") + 1].startswith("pfl-fast ")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_summaries_of_commands_are_not_cut_off(cli, words):
    page = " ".join(cli(*words[:-1], "--help").output.split())
    sentence = inspect.cleandoc(COMMANDS[words].help).split("\n\n")[0].removesuffix(".")
    assert f" {words[-1]} {' '.join(sentence.split())}" in page
