"""What the README shows is what there is."""

import re
import shlex
from pathlib import Path

import click
import pytest

from pfl_fast.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SHOWN = re.findall(r"(?:^|`)pfl-fast ((?:train|resume|methods) [^`#\n]*)", README, re.MULTILINE)
COMMANDS = sorted({words.strip() for words in SHOWN if "--help" not in words})


def test_ten_lines_are_the_example():
    (block,) = re.findall(r"## From Python\n\n```python\n(.*?)```", README, re.DOTALL)
    assert (ROOT / "examples" / "ten_lines.py").read_text().endswith(block)


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_are_understood(words):
    name, *rest = shlex.split(words)
    command = main.get_command(click.Context(main), name)
    command.make_context(name, rest)


def test_there_are_commands():
    assert len(COMMANDS) >= 8
