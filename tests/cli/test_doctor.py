import json

import pytest
from click.testing import CliRunner

from pfl_fast.cli import main
from pfl_fast.native import build


def test_page_and_exit_code():
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0, result.output
    for word in ("torch", "torchvision", "compiler", "nvcc", "CUDA", "threads", "data", "cache", "Ready to train."):
        assert word in result.output


def test_json_has_the_same_facts():
    report = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)
    assert report["can_train"] is True
    assert set(report["facts"]) == {"versions", "folders", "kernels", "devices"}


def test_folders_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("PFL_FAST_DATA", str(tmp_path / "data"))
    report = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)
    assert report["facts"]["folders"]["data"] == str(tmp_path / "data")


def test_missing_torch_cannot_train(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "pip install torch" in result.output


@pytest.mark.parametrize(("tool", "remedy"), [("find_compiler", "apt-get install g++"), ("find_nvcc", None)])
def test_each_missing_tool_has_a_suggestion(monkeypatch, tool, remedy):
    monkeypatch.setattr(build, tool, lambda: None)
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0
    assert remedy is None or remedy in result.output
