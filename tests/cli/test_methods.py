import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pfl_fast.cli import main
from pfl_fast.cli.method_costs import cost_of
from pfl_fast.methods import METHODS
from pfl_fast.methods.base import FAMILIES


def run(*words):
    result = CliRunner().invoke(main, ["methods", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_list_has_every_method_under_its_kind():
    lines = run().splitlines()
    heading, found = None, {}
    for line in lines:
        if line in FAMILIES:
            heading = line
        elif line.startswith("  "):
            found[line.split()[0]] = (heading, line)
    assert found.keys() == METHODS.keys()
    for name, kind in METHODS.items():
        assert found[name][0] == kind.family
        assert kind.summary in found[name][1]
    assert set(json.loads(run("--json"))) == set(METHODS)


def test_fidelity_page_is_up_to_date_and_names_tests_that_exist():
    page = run("--fidelity")
    root = Path(__file__).parents[2]
    assert (root / "docs" / "fidelity.md").read_text() == page, "pfl-fast methods --fidelity > docs/fidelity.md"
    tests = re.findall(r"`(tests/methods/\S+)`", page)
    assert len(tests) == len(METHODS)
    assert all((root / test).is_file() for test in tests)


def test_costs_are_counted():
    """By hand: an epoch of the head alone costs next to nothing, two models cost twice as much as one."""
    fedavg, fedper, ditto = (cost_of(name) for name in ("fedavg", "fedper", "ditto"))
    assert fedavg.uploaded == fedavg.downloaded == fedavg.parameters == 582_026
    assert fedper.uploaded == fedavg.parameters - 5130
    assert fedper.times(fedavg) == pytest.approx(1, rel=0.001)
    assert ditto.times(fedavg) == pytest.approx(2, rel=0.01)
    assert 1.9 < cost_of("scaffold").uploaded / fedavg.uploaded < 2.1
    assert cost_of("local").uploaded == cost_of("local").downloaded == 0


@pytest.mark.parametrize("name", METHODS)
def test_page_and_json_of_each(name):
    kind = METHODS[name]
    page, facts = run(name), json.loads(run(name, "--json"))
    assert kind.paper in page
    assert kind.batch_norm in page
    assert kind.reading in page
    assert kind.public_code in page
    assert "x FedAvg's" in page
    for part in facts["parts"]:
        assert part["part"] in page
    for option in facts["options"]:
        assert f"  {option['name']} = " in page
        assert option["help"] in page


def test_fedcp():
    page, facts = run("FedCP"), json.loads(run("fedcp", "--json"))
    assert "out = g(r * h; W_hd) + g(s * h; W_i_hd)" in page
    parts = {part["part"]: part for part in facts["parts"]}
    assert parts["global_extractor"] == {
        "part": "global_extractor",
        "trained": False,
        "receives": "extractor",
        "uploads": None,
        "recipients": "selected",
        "mixture_of": None,
        "persists": True,
    }
    assert parts["head"]["uploads"] is None
    assert parts["global_head"]["uploads"] == "head"
    assert facts["presets"]["official"]["policy"] == "gumbel"
    assert facts["paper_values"]["resnet18"] == {"lr": 0.1, "lam": 1.0}
    assert "resnet18, fasttext: lr=0.1, lam=1" in page
    assert "(one of softmax, gumbel)" in page


def test_values_by_data_set():
    page, facts = run("fedpick"), json.loads(run("fedpick", "--json"))
    digits = facts["paper_values_by_dataset"]["digits5"]
    assert (digits["tau"], digits["lam_lce"], digits["per_client"], digits["lr"]) == (10, 10, 1000, 0.01)
    assert "model_options" not in digits, "goes by the model"
    assert facts["paper_values"]["digits-cnn"]["model_options"] == ["cut=conv"]
    assert "  digits5: lr=0.01, momentum=0.5, batch_size=64" in page
    assert json.loads(run("fedcp", "--json"))["paper_values_by_dataset"] == {}
    assert "and by data set" not in run("fedcp")


def test_unknown_name_has_a_hint():
    result = CliRunner().invoke(main, ["methods", "fedcpp"])
    assert result.exit_code == 2
    assert "did you mean 'fedcp'" in result.output
