import json

import pytest
from click.testing import CliRunner

from pfl_fast.cli import main
from pfl_fast.methods import METHODS


def run(*words):
    result = CliRunner().invoke(main, ["methods", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_list_has_every_method():
    lines = run().splitlines()
    for name, kind in METHODS.items():
        assert any(line.startswith(name) and kind.summary in line for line in lines)
    assert set(json.loads(run("--json"))) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_page_and_json_of_each(name):
    kind = METHODS[name]
    page, facts = run(name), json.loads(run(name, "--json"))
    assert kind.paper in page
    assert kind.batch_norm in page
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
