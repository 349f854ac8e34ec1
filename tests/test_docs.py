"""The documentation site builds without warnings, and its tables agree with the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pfl_fast.cli import pfllib_flags

DOCS = Path(__file__).parent.parent / "docs"


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", str(source), str(out)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path):
    pytest.importorskip("sphinx")
    done = build(DOCS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    commands = (tmp_path / "reference" / "commands.html").read_text()
    assert "--rounds" in commands
    assert "aggregate_state_dicts" in (tmp_path / "reference" / "python.html").read_text()


@pytest.mark.slow
def test_a_page_outside_of_the_tables_of_contents_fails_the_build(tmp_path):
    pytest.importorskip("sphinx")
    (tmp_path / "conf.py").write_text("extensions = ['myst_parser']")
    (tmp_path / "index.md").write_text("# Start")
    (tmp_path / "lost.md").write_text("# Not listed")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    assert "lost.md" in done.stderr


def test_flags_of_pfllib_are_those_of_the_code():
    page = (DOCS / "pfllib.md").read_text()
    rows = re.search(r"<!-- flags -->\n(.*)<!-- /flags -->", page, re.DOTALL)[1].splitlines()[2:]
    shown = {flag: row.split("|")[2] for row in rows for flag in re.findall(r"`--?([^`]+)`", row.split("|")[1])}
    sources = (pfllib_flags.SETTINGS, pfllib_flags.METHOD_OPTIONS, pfllib_flags.IGNORED, pfllib_flags.UNSUPPORTED)
    long_names = {flag: names for source in sources for flag, (names, _) in source.items()} | dict(
        pfllib_flags.COMBINED
    )
    assert set(shown) == {"algo", *long_names, *(name for names in long_names.values() for name in names)}
    for flag, (_, setting) in pfllib_flags.SETTINGS.items():
        assert f"`--{setting.replace('_', '-')}`" in shown[flag]
