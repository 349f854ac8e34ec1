"""docs/reproduce.md shows the package's recipes and the recorded results, docs/fidelity.md their orderings."""

import json

from bench import reproduced
from tests.cli.conftest import cli  # noqa: F401 fixture
from tests.cli.test_reproduce import recipe  # noqa: F401 fixture


def test_pages_are_up_to_date():
    assert reproduced.page() == reproduced.PAGE.read_text(), "python -m bench.reproduced"
    assert reproduced.fidelity_page() == reproduced.FIDELITY.read_text(), "python -m bench.reproduced"


def test_orderings_have_a_reason_exactly_if_they_do_not_show():
    kinds = ("bug: ", "budget: ", "paper: ")
    for table, ordering, reason in reproduced.orderings():
        shows = ordering["verdict"] == "shows"
        assert reason == "" if shows else reason.startswith(kinds), (table, ordering)
    places = {(table, ordering["row"]) for table, ordering, _ in reproduced.orderings()}
    assert {(table, row) for table, rows in reproduced.reasons().items() for row in rows} <= places


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
