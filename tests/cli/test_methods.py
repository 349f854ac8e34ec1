import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pfl_fast.cli.method_costs import cost_of
from pfl_fast.experiment import Experiment
from pfl_fast.methods import METHODS
from pfl_fast.methods.base import FAMILIES


@pytest.fixture
def run(cli):
    """Returns the output of ``pfl-fast methods``."""
    return lambda *arguments: cli("methods", *arguments).output


def test_list_has_every_method_under_its_family(run):
    lines = run().splitlines()
    heading, found = None, {}
    for line in lines:
        if line in FAMILIES:
            heading = line
        elif line.startswith("  "):
            found[line.split()[0]] = (heading, line)
    assert found.keys() == METHODS.keys()
    for name, method in METHODS.items():
        assert found[name][0] == method.family
        assert method.summary in found[name][1]
    assert set(json.loads(run("--json"))) == set(METHODS)


def test_fidelity_page_is_up_to_date_and_names_tests_that_exist(run):
    page = run("--fidelity")
    root = Path(__file__).parents[2]
    assert (root / "docs" / "fidelity.md").read_text().startswith(page), "python -m bench.reproduced"
    tests = re.findall(r"`(tests/methods/\S+)`", page)
    assert len(tests) == len(METHODS)
    assert all((root / test).is_file() for test in tests)


def test_values_sent():
    fedavg, fedper = cost_of("fedavg"), cost_of("fedper")
    assert fedavg.uploaded == fedavg.downloaded == fedavg.parameters == 582_026
    assert fedper.uploaded == fedavg.parameters - 5130
    assert cost_of("scaffold").uploaded == 2 * fedavg.uploaded
    assert cost_of("local").uploaded == cost_of("local").downloaded == 0


# FLOPs of a whole training round, relative to FedAvg's.
FLOPS_OF_A_ROUND = {
    "apfl": 1.998,
    "centralised": 1.0,
    "ditto": 1.998,
    "fedafk": 2.342,
    "fedala": 1.345,
    "fedamp": 1.007,
    "fedavg": 1.0,
    "fedavg-ft": 1.0,
    "fedbabu": 1.0,
    "fedbn": 1.0,
    "fedcp": 1.477,
    "feddyn": 1.0,
    "fedfomo": 1.313,
    "fedios": 2.055,
    "fedper": 1.0,
    "fedphp": 1.347,
    "fedpick": 1.066,
    "fedproto": 0.998,
    "fedprox": 1.0,
    "fedrep": 1.347,
    "fedrod": 1.001,
    "lg-fedavg": 0.998,
    "local": 0.998,
    "moon": 1.689,
    "partialfed-adaptive": 2.0,
    "partialfed-fix": 1.0,
    "per-fedavg": 1.0,
    "pfedme": 4.991,
    "pfedvem": 1.43,
    "scaffold": 1.002,
}


@pytest.mark.parametrize("name", METHODS)
def test_flops_of_a_round_are_counted_without_training(name, monkeypatch):
    """The server's averages and FedAMP's distances, less than 1 % of FedAvg, are in the round but no client's cost."""
    monkeypatch.setattr(Experiment, "__init__", None)
    cost_of.cache_clear()
    assert cost_of(name).flops / cost_of("fedavg").flops == pytest.approx(FLOPS_OF_A_ROUND[name], abs=0.01)


def test_counting_does_not_import_the_compiler():
    """``torch._dynamo`` takes seconds to import, many times longer than counting."""
    program = "import sys; from pfl_fast.cli.method_costs import cost_of; cost_of('fedcp')"
    program += "; print('torch._dynamo' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


@pytest.mark.parametrize("name", METHODS)
def test_page_has_all_facts_of_the_method(run, name):
    method = METHODS[name]
    page, facts = run(name), json.loads(run(name, "--json"))
    assert method.paper in page
    assert method.batch_norm in page
    assert method.reading in page
    assert method.public_code in page
    assert "x FedAvg's" in page
    for part in facts["parts"]:
        assert part["part"] in page
    for option in facts["options"]:
        assert f"  {option['name']} = " in page
        assert option["help"] in page


def test_page_of_fedcp(run):
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


def test_values_of_the_paper_by_data_set(run):
    page, facts = run("fedpick"), json.loads(run("fedpick", "--json"))
    digits = facts["paper_values_by_dataset"]["digits5"]
    assert (digits["tau"], digits["lam_lce"], digits["lr"]) == (10, 10, 0.01)
    assert "model_options" not in digits, "listed by model"
    assert facts["paper_values"]["digits-cnn"]["model_options"] == ["cut=conv"]
    assert "  digits5: lr=0.01, momentum=0.5, batch_size=64" in page
    experiment = facts["paper_experiments"]["digits5"]
    assert (experiment["rounds"], experiment["per_domain"]) == (300, 1000)
    assert "mnist" not in json.loads(run("fedcp", "--json"))["paper_values_by_dataset"]


def test_error_about_an_unknown_name_suggests_a_method(cli):
    assert "did you mean 'fedcp'" in cli("methods", "fedcpp", exit_code=2).output
