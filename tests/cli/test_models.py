import json
import sys

from click.testing import CliRunner

from pfl_fast.cli import main
from pfl_fast.models import MODELS


def test_table_has_a_line_for_each_model():
    result = CliRunner().invoke(main, ["models"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(MODELS)]] == list(MODELS)
    assert "878,538" in lines[1]
    assert "cut='relu7'" in result.output


def test_json():
    rows = json.loads(CliRunner().invoke(main, ["models", "--json"]).output)
    assert [row["name"] for row in rows] == list(MODELS)
    alexnet = next(row for row in rows if row["name"] == "alexnet")
    assert (alexnet["feature_width"], alexnet["parameters"]) == (4096, 57_063_498)
    assert alexnet["options"] == {"cut": "relu7"}


def test_without_torchvision(monkeypatch):
    for module in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    result = CliRunner().invoke(main, ["models"])
    assert result.exit_code == 0, result.output
    assert "878,538" in result.output
    assert "model 'resnet18' needs torchvision" in result.output
    rows = json.loads(CliRunner().invoke(main, ["models", "--json"]).output)
    assert {row["name"] for row in rows if row["parameters"] is None} == {
        "resnet18",
        "mobilenet-v2",
        "efficientnet-b0",
        "densenet121",
    }
