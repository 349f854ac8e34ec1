import json
import sys

from pfl_fast.models import MODELS


def test_table_has_a_line_for_each_model(cli):
    lines = cli("models").output.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(MODELS)]] == list(MODELS)
    assert "878,538" in lines[1]
    assert any("cut='relu7'" in line for line in lines)


def test_json_has_all_models(cli):
    rows = json.loads(cli("models", "--json").output)
    assert [row["name"] for row in rows] == list(MODELS)
    alexnet = next(row for row in rows if row["name"] == "alexnet")
    assert (alexnet["feature_width"], alexnet["parameters"]) == (4096, 57_063_498)
    assert alexnet["options"] == {"cut": "relu7"}


def test_models_of_torchvision_are_listed_without_it(cli, monkeypatch):
    for module in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    page = cli("models").output
    assert "878,538" in page
    assert "model 'resnet18' needs torchvision" in page
    rows = json.loads(cli("models", "--json").output)
    assert {row["name"] for row in rows if row["parameters"] is None} == {
        "resnet18",
        "mobilenet-v2",
        "efficientnet-b0",
        "densenet121",
    }
