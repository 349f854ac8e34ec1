"""The commands, code blocks, links and tables of README.md and docs/ agree with the repository."""

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from bench.end_to_end import report
from pfl_fast.cli import main
from pfl_fast.methods import METHODS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
README = TEXTS["README.md"]
SHOWN = re.findall(r"(?:^|`)pfl-fast ([a-z][^`#|\n<>]*)", "\n".join(TEXTS.values()), re.MULTILINE)
COMMANDS = sorted({words.strip() for words in SHOWN if "--help" not in words})
BLOCKS = [
    pytest.param(block, id=f"{name}-{number}")
    for name, text in TEXTS.items()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL), 1)
]


def test_readme_is_short():
    assert len(README.splitlines()) < 150


def test_ten_lines_are_the_example():
    block = re.search(r"## From Python\n\n```python\n(.*?)```", README, re.DOTALL)[1]
    assert (ROOT / "examples" / "ten_lines.py").read_text().endswith(block)


def test_readme_counts_the_methods():
    assert f"**{len(METHODS)} methods**" in README


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_are_understood(words):
    command, rest = main, shlex.split(words)
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(click.Context(command), rest)
        if not rest:
            return  # an argument may be missing in prose: `pfl-fast resume`
    command.make_context(name, rest)


def test_every_family_of_commands_is_shown():
    assert {"train", "resume", "methods", "models", "datasets", "data", "doctor"} <= {c.split()[0] for c in COMMANDS}
    assert len(COMMANDS) >= 15


@pytest.mark.parametrize("block", BLOCKS)
def test_code_blocks_run(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "block", "exec"), {"__name__": "block"})


@pytest.mark.parametrize("name", TEXTS)
def test_links_point_to_files(name):
    targets = re.findall(r"\]\(([^)#:]+)\)", TEXTS[name])
    assert [t for t in targets if not (ROOT / name).parent.joinpath(t).exists()] == []


@pytest.mark.parametrize("name", TEXTS)
def test_make_targets_exist(name):
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = re.findall(r"(?:^|`)(?:[A-Z_]+=\S+ )*make (?:[A-Z]+='[^']*' )?([a-z0-9-]+)", TEXTS[name], re.MULTILINE)
    assert set(shown) <= targets


def test_tables_are_those_of_committed_results():
    stored = [json.loads(file.read_text()) for file in sorted((ROOT / "bench" / "end_to_end").glob("*.json"))]
    for page, table in ((report.README, report.short_table), (report.PERFORMANCE, report.table)):
        assert report.BLOCK.search(page.read_text())[0].split("\n", 1)[1] in [
            table(one) + "<!-- /bench-e2e -->" for one in stored
        ]
