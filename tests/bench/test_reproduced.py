"""docs/reproduce.md shows the package's recipes and the recorded results."""

import json

from bench import reproduced
from tests.cli.conftest import cli  # noqa: F401 fixture
from tests.cli.test_reproduce import recipe  # noqa: F401 fixture


def test_page_is_up_to_date():
    assert reproduced.page() == reproduced.PAGE.read_text(), "python -m bench.reproduced"


def test_recorded_results_are_shown(cli, recipe, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr(reproduced, "HERE", tmp_path / "paper")
    assert reproduced.results() == "None yet."
    cli("reproduce", recipe, "--columns", "digits", "--rows", "fedper", "--seeds", "0", "--quiet", "--out", "mine")
    file = reproduced.record(tmp_path / "mine")
    assert file.name == "mine.json"
    number = json.loads(file.read_text())["cells"][0]["ours"]["mean"]
    shown = reproduced.results()
    assert f"| digits | FedPer | 95.00 ± 0.50 | {number:.2f} | " in shown
    assert "```\npfl-fast reproduce " in shown
